"""Faults of linear attention and of the delta rule, each in the operations that can have it."""

from dataclasses import replace

from conformance.rows.row import Row, changes

PLAIN = ("simple_gla", "gla")
DELTA = ("gated_delta_rule", "kimi_delta_attention")

_ANY = """
    @ {op} _linear_attention.py _forward

    initial state ignored
    - S = S0[b]
    + S = 0 * S0[b]

    final state without the last write
    - last[b] = S
    + last[b] = S - _outer(x.k[steps[-1]], _step(x.at(steps[-1]), S).write) if steps else S

    final state of an empty sequence is zeros
    - last[b] = S
    + last[b] = S if steps else 0 * S

    output is read before the write
    - o[t] = _times(x.q[t], S)
    + o[t] = _times(x.q[t], _step(x.at(t), S0[b] if t is steps[0] else S).kept)

    @ {op} _linear_attention.py _step

    decay ignored
    - np.exp(x.g)
    + np.exp(0 * np.where(np.isneginf(x.g), 0.0, x.g))

    decay applied twice
    - np.exp(x.g)
    + np.exp(2 * x.g)

    log decays below -5 count as -5
    - np.exp(x.g)
    + np.exp(np.maximum(x.g, -5.0))

    a reset leaves what exp(-20) leaves
    - np.exp(x.g)
    + np.exp(np.maximum(x.g, -20.0))

    what a step writes decays at once
    - kept + _outer(x.k, write)
    + kept + np.exp(x.g)[..., None] * _outer(x.k, write)

    @ {op} _linear_attention.py _scale

    queries scaled by the number of value features
    - np.sqrt(call["K"])
    + np.sqrt(call["V"])

    scale ignored
    - scale is None
    + scale is None or call["K"]

    @ {op} _linear_attention.py _heads

    shared heads tiled
    - np.repeat(x, call["N"] // x.shape[-2], axis=-2)
    + np.concatenate([x] * (call["N"] // x.shape[-2]), axis=-2)

    @ {op} _linear_attention.py _backward

    cotangent of the final state ignored
    - np.zeros(S0.shape) if dstate is None else float64(dstate)
    + np.zeros(S0.shape)

    gradient of the memory does not decay
    - np.exp(x.g[t])[..., None] * dS
    + dS

    gradient of the memory detached at steps that are multiples of 16
    - dS = np.exp(x.g[t])[..., None] * dS
    + dS = np.exp(x.g[t])[..., None] * dS * (len([step for step in steps if step is not t]) % 16 != 15)

    gradient of the log decay read from the memory after the step
    - np.einsum("bnij,bnij->bni", dS, kept)
    + np.einsum("bnij,bnij->bni", dS, after)

    gradient of queries without the scale
    - _scale(call, scale) * _reduce(dx.q, call["Nq"], -2)
    + _reduce(dx.q, call["Nq"], -2)

    gradient of keys without the final state's
    - _times(write, dS.mT)
    + _times(write, (dS - dS0[b]).mT)
"""
_DELTA = """
    @ {op} _linear_attention.py _step

    memory is read before it decays
    - _times(x.k, kept)
    + _times(x.k, S)

    beta scales the value alone
    - x.beta * (x.v - _times(x.k, kept))
    + x.beta * x.v - _times(x.k, kept)

    beta ignored
    - x.beta * (x.v - _times(x.k, kept))
    + x.v - _times(x.k, kept)

    memory is not read: a plain write
    - x.beta * (x.v - _times(x.k, kept))
    + x.beta * x.v

    @ {op} _linear_attention.py _heads

    keys not normalised
    - _normalised(k, qk_norm_eps)
    + k

    beta of None counts as a half
    - np.ones((*v.shape[:-2], 1, 1))
    + 0.5 * np.ones((*v.shape[:-2], 1, 1))

    @ {op} _linear_attention.py _length

    eps of the normalisation outside the root
    - np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)
    + np.sqrt((x * x).sum(axis=-1, keepdims=True)) + eps

    @ {op} _linear_attention.py _backward

    gradient of keys without what they read
    - dk - _times(dv, kept.mT)
    + dk

    gradient of the memory without what keys read
    - dS - _outer(x.k[t], dv)
    + dS

    gradient of beta without what keys read
    - dw * (x.v[t] - _times(x.k[t], kept))
    + dw * x.v[t]

    gradient of values without beta
    - dx.q[t], dx.k[t], dx.v[t] = dq, dk, dv
    + dx.q[t], dx.k[t], dx.v[t] = dq, dk, dw

    @ {op} _linear_attention.py _normalised_backward

    lengths held constant
    - dy - y * (y * dy).sum(axis=-1, keepdims=True)
    + dy
"""
_CHANNELS = """
    @ {op} _linear_attention.py _step

    decay per head: that of the first key channel
    - np.exp(x.g)
    + np.exp(x.g[..., :1])
"""


def _rows(op: str) -> tuple[Row, ...]:
    texts = (_ANY, *([_DELTA] if op in DELTA else []), *([_CHANNELS] if op in ("gla", DELTA[1]) else []))
    return tuple(row for text in texts for row in changes(text.format(op=op)))


_OF_SEVERAL_STEPS = (
    "gradient of the memory detached at steps that are multiples of 16",
    "beta of None counts as a half",
)
_STEP = """
    @ gated_delta_step _linear_attention.py gated_delta_step

    output is read before the write
    - return (_times(x.q, after), after)
    + return (_times(x.q, float64(state)), after)

    returns the memory that it was given
    - return (_times(x.q, after), after)
    + return (_times(x.q, after), float64(state))

    memory written in place
    - return (_times(x.q, after), after)
    + state[...] = after
    + return (_times(x.q, after), after)

    memory handed on in float32
    - return (_times(x.q, after), after)
    + return (_times(x.q, after), after.astype(np.float32))

    @ gated_delta_step _linear_attention.py gated_delta_step_backward

    gradient of the memory zero
    - gradients.pop("initial_state")
    + 0 * gradients.pop("initial_state")
"""


def _rows_of_step() -> tuple[Row, ...]:
    """Of one step: the faults of the gated delta rule that show there, and its own."""
    shared = (row for row in _rows("gated_delta_rule") if row.function != "_forward")
    of_step = (replace(row, op="gated_delta_step") for row in shared if row.name not in _OF_SEVERAL_STEPS)
    return (*of_step, *changes(_STEP))


ROWS = (*(row for op in (*PLAIN, *DELTA) for row in _rows(op)), *_rows_of_step())
