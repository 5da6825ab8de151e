"""The two passes of the GRU's kernels (Mosaic GPU; wgmma, TMA): their arguments, and the plan for each width.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8. With row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

The state is carried in float32; operands of products are sums of bfloat16 terms (`jax_impl._pallas`). `parts` describes
the layouts. ``remaining``, ``(64, columns)`` int32 with equal rows, is the number of steps of each column; after them
its state does not change.
"""

from types import ModuleType

import jax
import jax.numpy as jnp

from jax_impl._gru.arguments import Inputs, Weights
from jax_impl._gru.pallas import resident, streamed
from jax_impl._gru.pallas.parts import Plan, arranged
from jax_impl._pallas import SHARED_MEMORY, TERMS, L, unavailable
from reference.backends import Row

LARGEST = 1024
"""Maximum number of units of a head: a larger state would not fit in shared memory next to the stream."""
COLUMNS = (32, 16, 8)
"""Columns per block with streamed weights: as many as exist and fit. With resident weights it is the fewest."""
STAGES = (4, 3, 2)
"""TMA stages: as many as fit, with streamed weights at most three."""

ROW = Row(
    backend="pallas",
    operation="gru",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=(("H", LARGEST),),
    packed=True,
    options=("gradient_clipping",),
    unavailable=unavailable,
)


def plan_for(dtype: str, H: int, columns: int, gradient: bool, interpret: bool = False) -> Plan:
    """The plan of a pass for heads of ``H`` units and ``columns`` that share a weight: resident if the weights fit.

    If weights are streamed, a stage holds 24 or 32 KB of them.
    """
    terms, tiles = TERMS[dtype], -(-H // L)
    wide = min(4 // terms, tiles)
    fewest = COLUMNS[-1]
    resident_plans = [
        Plan(
            resident=True,
            terms=terms,
            tiles=tiles,
            wide=tiles,
            columns=fewest,
            stages=stages,
            interpret=interpret,
        )
        for stages in STAGES
    ]
    streamed_plans = [
        Plan(
            resident=False,
            terms=terms,
            tiles=-(-tiles // wide) * wide,
            wide=wide,
            columns=of_block,
            stages=stages,
            interpret=interpret,
        )
        for stages in STAGES[1:]
        for of_block in COLUMNS
        if of_block < 2 * max(columns, fewest)
    ]
    offered = resident_plans + streamed_plans
    return next(plan for plan in offered if memory(plan, dtype, gradient) <= SHARED_MEMORY)


def memory(plan: Plan, dtype: str, gradient: bool) -> int:
    """Bytes of shared memory per block, rounded up."""
    value_bytes = 4 if gradient else jax.numpy.dtype(dtype).itemsize
    return _kernels(plan).memory(plan, value_bytes, gradient)


def _kernels(plan: Plan) -> ModuleType:
    return resident if plan.resident else streamed


def forward(plan: Plan, inputs: Inputs, weights: Weights, h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, weights, U, 64, columns)`` float32.

    Args:
        inputs: ``(S, weights, U, 64, columns)`` each.
        weights: ``(weights, 64·U, 64·U)`` each.
        h0: ``(weights, U, 64, columns)``.
    """
    stacked = jnp.stack([inputs.xf, inputs.xr, inputs.x], axis=2)
    operands = arranged(plan, [weight.swapaxes(-1, -2) for weight in (weights.Wf, weights.Wr, weights.W)])
    return _kernels(plan).forward(plan, inputs=stacked, weights=operands, h0=h0, remaining=remaining)


def backward(
    plan: Plan,
    bound: float | None,
    factors: jax.Array,
    weights: Weights,
    dlast: jax.Array,
    remaining: jax.Array,
) -> tuple[Inputs, jax.Array]:
    """Gradients of the inputs, ``(S, weights, U, 64, columns)`` float32, and of the initial state.

    Steps are computed from the last to the first.

    With ``dh`` the gradient that reaches a state, clipped, plus the cotangent of the output::

        dx = dh a_z        a_z = (1−f)(1−z²)        dx_f = dh a_f    a_f = (h−z) f(1−f)
        drh = dx Wᵀ        dx_r = drh a_r           a_r = h r(1−r)
        dh ← dh f + drh r + dx_f W_fᵀ + dx_r W_rᵀ

    Args:
        bound: the bound that dh is clipped to; None disables clipping.
        factors: the pairs (a_z, f), (a_r, r) and (dy, a_f), ``(S, weights, 3, U, 128, columns)`` float32.
        weights: ``(weights, 64·U, 64·U)`` each.
        dlast: cotangent of the final state, ``(weights, U, 64, columns)``.
    """
    operands = arranged(plan, [weights.Wf, weights.W, weights.Wr])
    dinputs, dfirst = _kernels(plan).backward(
        plan, bound, factors=factors, weights=operands, dlast=dlast, remaining=remaining
    )
    return Inputs(x=dinputs[:, :, 0], xf=dinputs[:, :, 1], xr=dinputs[:, :, 2]), dfirst
