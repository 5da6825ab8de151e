"""Derivatives that PyTorch's autograd maps over cotangents or carries forward, in every operation."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

from tests.torch.functions import fwbw, step, with_state
from tests.torch.loops import cotangents, gru_arguments, mlstm_arguments, relative_error
from torch_impl import (
    causal_forget_matrix,
    dtilde_matrix,
    gru,
    rev_cumsum,
    rev_cumsum_off,
)

BOUNDS = torch.tensor([0, 3, 3, 5])
# PyTorch compiles a few decompositions with torch.jit.script when it first meets a dual number: a DeprecationWarning in
# 2.13, a FutureWarning in 2.15.
DECOMPOSITIONS = "ignore:`torch.jit.script`"


whole, packed = with_state(chunk_size=2), with_state(cu_seqlens=BOUNDS)
# Without stabilize_correctly the floor is held constant, as gradcheck would notice.
by_fwbw = fwbw(chunk_size=2, keep_G=True, keep_c=True, stabilize_correctly=True)


def gru_packed(*arrays):
    return gru(*arrays, cu_seqlens=BOUNDS)


def finite(function):
    return lambda *arrays: (function(*arrays).nan_to_num(0.0, 0.0, 0.0),)


dense = mlstm_arguments(2, 3, 2, 2, 1, with_state=True)
gates = mlstm_arguments(2, 3, 1, 1, 1)
CASES = {
    "mlstm": (whole, dense),
    "mlstm packed": (packed, mlstm_arguments(3, 5, 2, 2, 1, with_state=True, packed=True)),
    "mlstm_step": (step, [x[:, 0] if number < 5 else x for number, x in enumerate(dense)]),
    "fwbw": (by_fwbw, [x[:, :, 0] if number < 5 else x[:, 0] for number, x in enumerate(dense)]),
    "gru": (gru, gru_arguments(2, 3, 2, (2, 1, 1, 2, 1, 1), with_state=True)),
    "gru packed": (gru_packed, gru_arguments(3, 5, 2, (2, 1, 1, 2, 1, 1), with_state=True, packed=True)),
    "dtilde_matrix": (finite(dtilde_matrix), gates[3:]),
    "causal_forget_matrix": (finite(causal_forget_matrix), [-gates[4][..., 0].abs()]),
    "rev_cumsum": (finite(rev_cumsum), [gates[4]]),
    "rev_cumsum_off": (finite(rev_cumsum_off), [gates[4]]),
}
FORWARD = {"causal_forget_matrix", "rev_cumsum", "rev_cumsum_off"}
"""Operations composed of PyTorch's functions, which carry derivatives forward."""


@pytest.fixture(params=CASES)
def case(request):
    function, arrays = CASES[request.param]
    return request.param, function, [x.detach().clone().requires_grad_() for x in arrays]


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
    h = whole(*arrays)[0]
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
        if name in FORWARD:
            jacobians = jacobian(lambda *x: function(*x)[0], tuple(arrays))
            expected = sum(torch.tensordot(J, t, t.ndim) for J, t in zip(jacobians, tangents, strict=True))
            agree(forward(), [expected])
            continue
        with pytest.raises(RuntimeError, match=f"^{'mlstm' if name == 'fwbw' else name.split()[0]}: forward-mode"):
            forward()


@pytest.mark.filterwarnings(DECOMPOSITIONS)
def test_forward_over_reverse(case):
    name, function, arrays = case
    if name in FORWARD:
        return
    outputs = function(*arrays)
    upstream = cotangents(outputs)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="second derivatives are not available"):
        torch.autograd.grad(outputs, arrays, [forward_ad.make_dual(d, d) for d in upstream])


@pytest.mark.filterwarnings(DECOMPOSITIONS)
def test_arrays_without_a_tangent_inside_a_dual_level():
    arrays = [x.detach() for x in dense]
    with forward_ad.dual_level():
        found = whole(*arrays)
    agree(found, whole(*arrays))
