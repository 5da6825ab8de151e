"""The GRU as cells of the templates in `torch_impl._recurrent.triton`; its gates are r, f, z, in this order."""

import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._recurrent.triton.cell import Cell
from torch_impl._recurrent.triton.shared import sigmoid, sigmoids, tanh
from torch_impl._triton.shared import device_function


@device_function
def reset(u, h, FAST: tl.constexpr):
    """r⊙h, the operand of the candidate's product."""
    return sigmoid(u[0], FAST) * h, (u[1],)


@device_function
def blended(h, uf, uz, FAST: tl.constexpr):
    """f⊙h + (1−f)⊙z."""
    f, left = sigmoids(uf, FAST)
    return f * h + left * tanh(uz, FAST)


@device_function
def advance(u, states, FAST: tl.constexpr):
    return (blended(states[0], u[0], u[1], FAST),), ()


@device_function
def advance_reset_after(u, states, FAST: tl.constexpr):
    r = sigmoid(u[0], FAST)
    return (blended(states[0], u[1], u[3] + r * u[2], FAST),), ()


@device_function
def backward(dh, carried, saved):
    _, f, az, af, _ = saved
    return (af * dh, az * dh), dh * f, carried


@device_function
def reset_backward(d, saved):
    r, _, _, _, ar = saved
    return ar * d, r * d


@device_function
def backward_reset_after(dh, carried, saved):
    r, f, az, af, ar = saved
    duz = az * dh
    return (ar * duz, af * dh, r * duz, duz), dh * f, carried


CELLS = {
    False: Cell("late", 3, (0.0,), advance, backward, late=reset, late_backward=reset_backward),
    True: Cell("apart", 3, (0.0,), advance_reset_after, backward_reset_after),
}
"""By whether the reset gate is applied after the product; ``saved`` are the fields of `_Factors` of the launcher."""
