"""The sLSTM as cells of the templates in `torch_impl._recurrent.triton`.

Gates are z, i, f, o, in this order; the parts of a state are h, c, n, m. The equations are in the docstring of
`torch_impl._slstm.api`. A step keeps tanh(u_z), 1 − tanh²(u_z), the gain exp(u_i − m), negative where the step's own
write attains m, the decay exp(a + m_before − m), ∂a/∂u_f, the output gate as `one_sided`, and the decayed memory,
decay⊙c and decay⊙n; `torch_impl._slstm.triton.launch.Residuals` names them in this order.
"""

import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._recurrent.triton.cell import Cell
from torch_impl._recurrent.triton.shared import sigmoids, tanh, tanh_slope
from torch_impl._triton.shared import device_function, log_sigmoid, maximum


@device_function
def one_sided(u, FAST: tl.constexpr):
    """σ(u) where it is at most 1/2, else −σ(−u): both σ(u) and 1 − σ(u) follow from it to full relative precision."""
    whole, left = sigmoids(u, FAST)
    return whole, tl.where(u > 0, -left, whole)


@device_function
def two_sided(x):
    """σ(u) and 1 − σ(u) from `one_sided`."""
    return tl.where(x < 0, 1.0 + x, x), tl.where(x < 0, -x, 1.0 - x)


@device_function
def step(u, states, a, slope, FAST: tl.constexpr):
    """The states after a step whose log forget gate is a, and what the backward pass needs."""
    _, c, n, m = states
    reached = a + m
    m_new = maximum(reached, u[1])
    # In place of a stabiliser of −∞ the least finite number makes both weights 0 and not NaN.
    unit = maximum(m_new, -3.4028234663852886e38)
    decay = tl.exp((reached - unit) + lost_by_rounding(a, m, reached, n))
    gain = tl.exp(u[1] - unit)
    z = tanh(u[0], FAST)
    o, kept_o = one_sided(u[3], FAST)
    c_left = decay * c
    n_left = decay * n
    c_new = c_left + gain * z
    n_new = n_left + gain
    h = o * quotient(c_new, n_new)
    kept = (z, tanh_slope(u[0], FAST), tl.where(u[1] > reached, -gain, gain), decay, slope, kept_o, c_left, n_left)
    return (h, c_new, n_new, m_new), kept


@device_function
def lost_by_rounding(a, m, reached, n):
    """The part that rounding took from ``a + m``, which belongs to the log weight of the memory.

    It adds up over the steps of a memory that only decays. It counts as 0 where it would take n far from 1 (2⁴⁰), in
    many steps or in one.
    """
    # Half of the least number: less it, no m is infinite.
    lost = (m - tl.maximum(reached, -1.7014117331926443e38)) + a
    near = (n == 0.0) | ((n > 9.094947017729282e-13) & (n < 1.099511627776e12))
    return tl.where(near & (tl.abs(lost) < 16.0), lost, 0.0)


@device_function
def quotient(x, n):
    """``x / n``; 0 where nothing has been written, or less than the smallest normal number."""
    empty = n < 1.1754943508222875e-38
    return tl.where(empty, 0.0, x / tl.where(empty, 1.0, n))


@device_function
def advance_sigmoid(u, states, FAST: tl.constexpr):
    _, slope = sigmoids(u[2], FAST)
    return step(u, states, log_sigmoid(u[2]), slope, FAST)


@device_function
def advance_exponential(u, states, FAST: tl.constexpr):
    return step(u, states, u[2], tl.full(u[2].shape, 1.0, tl.float32), FAST)


@device_function
def backward(dh, carried, saved):
    """``carried`` are the gradients of c and n, and what is left of the cotangent of the final m."""
    dc, dn, g = carried
    z, z_slope, signed_gain, decay, slope, kept_o, c_left, n_left = saved
    o, o_left = two_sided(kept_o)
    writes = signed_gain < 0
    gain = tl.abs(signed_gain)
    n = n_left + gain
    ratio = quotient(c_left + gain * z, n)
    dh_n = quotient(dh * o, n)
    dc = dc + dh_n
    dn = dn - dh_n * ratio
    du_z = gain * dc * z_slope
    du_i = gain * (z * dc + dn) + tl.where(writes, g, 0.0)
    g = tl.where(writes, 0.0, g)
    du_f = (c_left * dc + n_left * dn + g) * slope
    du_o = dh * ratio * o * o_left
    return (du_z, du_i, du_f, du_o), tl.zeros_like(dh), (decay * dc, decay * dn, g)


EMPTY = (0.0, 0.0, 0.0, float("-inf"))
CELLS = {
    "sigmoid": Cell("together", 4, EMPTY, advance_sigmoid, backward),
    "exp": Cell("together", 4, EMPTY, advance_exponential, backward),
}
"""By forget gate."""
