"""Derivatives that PyTorch's autograd maps over cotangents or carries forward, in every operation."""

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

from tests.torch.loops import cotangents, mlstm_arguments, relative_error
from tests.torch.test_transforms import BOUNDS, CASES, dense, mlstm_dense
from torch_impl import (
    causal_forget_matrix,
    rev_cumsum,
    rev_cumsum_off,
)

# PyTorch compiles a few decompositions with torch.jit.script when it first meets a dual number: a DeprecationWarning in
# 2.13, a FutureWarning in 2.15.
DECOMPOSITIONS = "ignore:`torch.jit.script`"


def finite(function):
    return lambda *arrays: (function(*arrays).nan_to_num(0.0, 0.0, 0.0),)


gates = mlstm_arguments(2, 3, 1, 1, 1)
SUMS = {
    "causal_forget_matrix": (finite(causal_forget_matrix), [-gates[4][..., 0].abs()]),
    "rev_cumsum": (finite(rev_cumsum), [gates[4]]),
    "rev_cumsum_off": (finite(rev_cumsum_off), [gates[4]]),
}
"""Operations composed of PyTorch's functions, which carry derivatives forward."""
NAMES = {"fwbw": "mlstm", "dtilde": "dtilde_matrix"}


@pytest.fixture(params=[*CASES, *SUMS])
def case(request):
    function, arrays = (CASES | SUMS)[request.param]
    if "packed" in request.param:
        function = partial(with_bounds, function)
    return request.param, function, [x.detach().clone().requires_grad_() for x in arrays]


def with_bounds(function, *arrays):
    return function(*arrays, torch.tensor(BOUNDS))


def agree(got, expected):
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape and relative_error(x, y) < 1e-12


@pytest.mark.parametrize("rows", [1, 3])
def test_batches_of_cotangents(case, rows):
    _, function, arrays = case
    outputs = function(*arrays)
    batches = [torch.stack([d * (1 + row) for row in range(rows)]) for d in cotangents(outputs)]
    each = [torch.autograd.grad(outputs, arrays, [d[row] for d in batches], retain_graph=True) for row in range(rows)]
    expected = [torch.stack(column) for column in zip(*each, strict=True)]
    agree(torch.autograd.grad(outputs, arrays, batches, is_grads_batched=True, retain_graph=True), expected)
    # Only one output has a cotangent; with create_graph the backward pass is itself recorded.
    one = torch.autograd.grad(
        outputs[0], arrays, batches[0], is_grads_batched=True, create_graph=True, allow_unused=True
    )
    each = [torch.autograd.grad(outputs[0], arrays, d, retain_graph=True, allow_unused=True) for d in batches[0]]
    agree(one, [torch.stack(column) for column in zip(*each, strict=True)])


def test_nested_batches_of_cotangents():
    """The vmap inside autograd, twice."""
    arrays = [x.detach().clone().requires_grad_() for x in dense]
    h = mlstm_dense(*arrays)[0]
    batches = torch.stack([torch.ones_like(h), 2 * torch.ones_like(h)])
    batches = torch.stack([batches, 3 * batches, -batches])

    def rows(d):
        return torch.autograd.grad(h, arrays[:5], d, is_grads_batched=True, retain_graph=True)

    found = torch._vmap_internals._vmap(rows)(batches)
    agree([x[2, 1] for x in found], torch.autograd.grad(h, arrays[:5], batches[2, 1]))


@pytest.mark.filterwarnings(DECOMPOSITIONS)
def test_forward_mode(case):
    """Right, or one error that names the function; never a tangent that lacks a part."""
    name, function, arrays = case
    arrays = [x.detach() for x in arrays]
    tangents = cotangents(arrays)

    def dual():
        with forward_ad.dual_level():
            outputs = function(*(forward_ad.make_dual(x, t) for x, t in zip(arrays, tangents, strict=True)))
            return [forward_ad.unpack_dual(y).tangent for y in outputs]

    def functional():
        return torch.func.jvp(lambda *x: function(*x), tuple(arrays), tuple(tangents))[1]

    for forward in (dual, functional):
        if name in SUMS:
            jacobians = jacobian(lambda *x: function(*x)[0], tuple(arrays))
            expected = sum(torch.tensordot(J, t, t.ndim) for J, t in zip(jacobians, tangents, strict=True))
            agree(forward(), [expected])
            continue
        with pytest.raises(RuntimeError, match=f"^{NAMES.get(name, name.split()[0])}: forward-mode"):
            forward()


@pytest.mark.filterwarnings(DECOMPOSITIONS)
def test_forward_over_reverse(case):
    name, function, arrays = case
    if name in SUMS:
        return
    outputs = function(*arrays)
    upstream = cotangents(outputs)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="second derivatives are not available"):
        torch.autograd.grad(outputs, arrays, [forward_ad.make_dual(d, d) for d in upstream])


@pytest.mark.filterwarnings(DECOMPOSITIONS)
def test_arrays_without_a_tangent_inside_a_dual_level():
    arrays = [x.detach() for x in dense]
    with forward_ad.dual_level():
        found = mlstm_dense(*arrays)
    agree(found, mlstm_dense(*arrays))
