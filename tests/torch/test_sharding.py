"""The sharding functions of PyTorch: labels, gradients, and what is no mesh. Their laws are in tests/calls."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils import _pytree as pytree

from torch_impl import Partitioned, split_array_over_mesh, stack_params


def stand_in(**coordinates):
    """A mesh of size 2 along each axis, seen from one place on it."""
    names = tuple(coordinates)
    return SimpleNamespace(mesh_dim_names=names, get_local_rank=coordinates.__getitem__, size=lambda index: 2)


def test_partitioned_is_a_pytree():
    box = Partitioned(torch.ones(2), ("dp",))
    doubled = pytree.tree_map(lambda x: 2 * x, {"w": box})["w"]
    assert isinstance(doubled, Partitioned) and doubled.names == ("dp",) and torch.equal(doubled.value, 2 * box.value)
    [(path, _)], _ = pytree.tree_flatten_with_path({"w": box})
    assert pytree.keystr(path) == "['w'].value"
    with pytest.raises(AttributeError):
        box.value = None


def test_gradients_and_copies():
    x = torch.randn(4, 2, requires_grad=True)
    part = split_array_over_mesh(x, "dp", 0, mesh=stand_in(dp=1))
    assert part.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    (dx,) = torch.autograd.grad(part.sum() + stack_params([x], "dp", mesh=stand_in(dp=1))[0].value.sum(), x)
    assert torch.equal(dx, torch.tensor([1.0, 1.0, 2.0, 2.0])[:, None].expand(4, 2))


def test_what_is_no_mesh_is_refused():
    x = torch.ones(4, 6)
    for refused, received in ((None, "None"), ("dp", "'dp'"), (x, r"f32\[4,6\]")):
        with pytest.raises(TypeError, match=f"^stack_params: `mesh` is {received}; expected a device mesh with named"):
            stack_params(x, "dp", mesh=refused)
