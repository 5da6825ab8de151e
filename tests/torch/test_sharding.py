"""The sharding functions on a 2×2 mesh of gloo processes, and on whatever looks like a mesh."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils import _pytree as pytree

from tests.torch.processes import on_ranks
from torch_impl import Partitioned, fold_rng_over_axis, split_array_over_mesh, stack_params, unstack_params


def stand_in(**coordinates):
    """A mesh of size 2 along each axis, seen from one place on it."""
    names = tuple(coordinates)
    return SimpleNamespace(mesh_dim_names=names, get_local_rank=coordinates.__getitem__, size=lambda index: 2)


def on_mesh(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.arange(24.0).reshape(4, 6)
    params = {"w": torch.full((3,), float(rank)), "b": [torch.tensor(rank)]}
    stacked = stack_params(params, "tp", axis=-1, mask_except=1, mesh=mesh)
    gathered = [torch.empty(3, 1) for _ in range(4)]
    torch.distributed.all_gather(gathered, stacked["w"].value)
    return {
        "seeds": [fold_rng_over_axis(3, axis, mesh=mesh) for axis in ("dp", "tp", ("dp", "tp"))],
        "rows": split_array_over_mesh(x, "dp", 0, mesh=mesh),
        "columns": split_array_over_mesh(x, "tp", -1, mesh=mesh),
        "both": split_array_over_mesh(x, ("dp", "tp"), 0, mesh=mesh),
        "w": torch.cat(gathered, 1),
        "names": (stacked["w"].names, stacked["b"][0].names),
        "back": unstack_params(stack_params(params, ("dp", "tp"), mesh=mesh), ("dp", "tp"), mesh=mesh),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(on_mesh, 4, tmp_path_factory.mktemp("ranks"))


def test_seeds_on_the_mesh(ranks):
    seeds = [ranks[rank]["seeds"] for rank in range(4)]
    spawned = np.random.SeedSequence(3, spawn_key=(1,)).spawn(4)
    expected = [int(seed.generate_state(1, np.uint64)[0]) for seed in spawned]
    assert [s[0] for s in seeds] == [expected[0], expected[0], expected[1], expected[1]]
    assert [s[1] for s in seeds] == [expected[0], expected[1], expected[0], expected[1]]
    assert [s[2] for s in seeds] == expected


def test_slices_on_the_mesh(ranks):
    x = torch.arange(24.0).reshape(4, 6)
    for rank in range(4):
        dp, tp = divmod(rank, 2)
        assert torch.equal(ranks[rank]["rows"], x[2 * dp : 2 * dp + 2])
        assert torch.equal(ranks[rank]["columns"], x[:, 3 * tp : 3 * tp + 3])
        assert torch.equal(ranks[rank]["both"], x[rank : rank + 1])


def test_parameters_on_the_mesh(ranks):
    for rank in range(4):
        assert torch.equal(ranks[rank]["w"], torch.tensor([0.0, 1.0, 0.0, 3.0]).expand(3, 4))
        assert ranks[rank]["names"] == ((None, "tp"), ("tp",))
        assert torch.equal(ranks[rank]["back"]["w"], torch.full((3,), float(rank)))
        assert ranks[rank]["back"]["b"][0] == rank


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
