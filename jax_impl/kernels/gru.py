"""The GRU's kernels (Mosaic GPU; wgmma, TMA): what they take, and the plan for each width.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8. Row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

The state is carried in float32; operands of products are sums of bfloat16 terms (`kernels._pallas`). How arrays lie
says `kernels.gru_parts`. ``remaining``, ``(64, R)`` int32 with equal rows, says how many steps each lane has: after
those its state stays.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_impl.kernels import gru_resident, gru_streamed
from jax_impl.kernels._pallas import SHARED_MEMORY, TERMS, L, unavailable
from jax_impl.kernels.gru_parts import Cut, arranged
from reference.backends import Row

LARGEST = 1024
"""Units of a head: with more, its state would not fit in shared memory beside the stream."""
LANES = (32, 16, 8)
"""Lanes of a block whose weights are streamed, as many as there are and as fit; a resident one has the fewest."""
STAGES = (4, 3, 2)
"""TMA stages, as many as fit; of streamed weights three at most."""

ROW = Row(
    backend="pallas",
    operation="gru",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=(("H", LARGEST),),
    packed=True,
    unavailable=unavailable,
)


def cut(dtype: str, H: int, rows: int, gradient: bool, interpret: bool = False) -> Cut:
    """The plan of a pass for heads of ``H`` units and ``rows`` lanes that share a weight: resident where that fits.

    Streamed, a stage has 24 or 32 KB of the weights.
    """
    terms, tiles = TERMS[dtype], -(-H // L)
    wide = min(4 // terms, tiles)
    streamed = Cut(False, terms, -(-tiles // wide) * wide, wide, LANES[-1], STAGES[-1], interpret)
    resident = [Cut(True, terms, tiles, tiles, LANES[-1], stages, interpret) for stages in STAGES]
    offered = resident + [
        streamed._replace(lanes=lanes, stages=stages)
        for stages in STAGES[1:]
        for lanes in LANES
        if lanes < 2 * max(rows, LANES[-1])
    ]
    return next(c for c in offered if memory(c, dtype, gradient) <= SHARED_MEMORY)


def memory(c: Cut, dtype: str, gradient: bool) -> int:
    """Bytes of shared memory of a block, rounded up."""
    value_bytes = 4 if gradient else jax.numpy.dtype(dtype).itemsize
    return (gru_resident if c.resident else gru_streamed).memory(c, value_bytes, gradient)


def forward(c: Cut, inputs: jax.Array, weights: Sequence[jax.Array], h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, W, U, 64, R)`` float32.

    Args:
        inputs: x_f, x_r and x, ``(S, W, 3, U, 64, R)``.
        weights: W_f, W_r and W, ``(W, 64·U, 64·U)``.
        h0: ``(W, U, 64, R)``.
    """
    operands = arranged(c, [weight.swapaxes(-1, -2) for weight in weights])
    return (gru_resident if c.resident else gru_streamed).forward(c, inputs, operands, h0, remaining)


def backward(
    c: Cut,
    bound: float | None,
    factors: jax.Array,
    weights: Sequence[jax.Array],
    dlast: jax.Array,
    remaining: jax.Array,
    dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """Gradients of x, x_f and x_r, ``(S, W, 3, U, 64, R)`` in ``dtype``, and of the first state; the last step first.

    With ``dh`` what reaches a state, clipped, then the output's cotangent added::

        dx = dh a_z        a_z = (1−f)(1−z²)        dx_f = dh a_f    a_f = (h−z) f(1−f)
        drh = dx Wᵀ        dx_r = drh a_r           a_r = h r(1−r)
        dh ← dh f + drh r + dx_f W_fᵀ + dx_r W_rᵀ

    Args:
        bound: what dh is clipped to; None for no clipping.
        factors: the pairs (a_z, f), (a_r, r) and (dy, a_f), ``(S, W, 3, U, 128, R)`` float32.
        weights: W_f, W and W_r, ``(W, 64·U, 64·U)``.
        dlast: cotangent of the last state, ``(W, U, 64, R)``.
    """
    operands = arranged(c, weights)
    kernels = gru_resident if c.resident else gru_streamed
    return kernels.backward(c, bound, factors, operands, dlast, remaining, dtype)
