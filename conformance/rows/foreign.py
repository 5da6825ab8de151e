"""Ways that are right, but lose digits which gatespec's own packages keep: rows that no law refuses a stranger."""

from conformance.rows.row import changes

_SUMS = """
    @ {op} _linear_attention.py _heads

    decays as differences of sums over 256 steps, in which a log decay below -16 counts as -16
    - g = g if rule.channels else g[..., None]
    + ...
    + usual = np.moveaxis(np.maximum(g, -16.0), -3, 0)
    + sums = [np.cumsum(usual[at : at + 256], axis=0) for at in range(0, len(usual), 256)]
    + between = np.concatenate([usual[:0], *(x for each in sums for x in (each[:1], each[1:] - each[:-1]))])
    + g = np.moveaxis(between, 0, -3) + np.minimum(g + 16.0, 0.0)

    @ {op} _linear_attention.py _backward

    gradient of log decays as differences of what reaches all later steps
    - dS0[b] = dS
    + later = np.abs(dS0[b] * S).sum(axis=-1)
    + for t in reversed(steps):
    +     later = later + np.abs(x.q[t] * dx.q[t])
    +     of_decay = later if rule.channels else later.sum(axis=-1, keepdims=True)
    +     dx.g[t] = (dx.g[t] + of_decay) - of_decay
    + ...
"""
_SOLVED = """
    @ {op} _linear_attention.py _forward

    in chunks of 64 steps: writes are first computed without the memory, and what it adds to them is one product
    - for t in steps:
    -     S = _step(x.at(t), S).after
    -     o[t] = _times(x.q[t], S)
    + for start in range(0, len(steps), 64):
    +     chunk = steps[start : start + 64]
    +     q, k, v, g, beta = (np.stack([y[t] for t in chunk]) for y in x)
    +     since, decay, alone, of_memory = np.cumsum(g, axis=0), [np.zeros((1, *g.shape[1:]))], v[:0], k[:0]
    +     for more in g[1:]:
    +         decay.append(np.concatenate([decay[-1] + more, decay[0]]))
    +     for at in range(len(chunk)):
    +         scores = (k[at] * np.exp(decay[at][:at]) * k[:at]).sum(axis=-1, keepdims=True)
    +         write = beta[at] * (v[at] - (scores * alone).sum(axis=0))
    +         alone = np.concatenate([alone, write[None]])
    +         read = beta[at] * (np.exp(since[at]) * k[at] - (scores * of_memory).sum(axis=0))
    +         of_memory = np.concatenate([of_memory, read[None]])
    +     u = alone - np.einsum("tbni,bnij->tbnj", of_memory, S)
    +     for at, t in enumerate(chunk):
    +         scores = (q[at] * np.exp(decay[at]) * k[: at + 1]).sum(axis=-1, keepdims=True)
    +         o[t] = (scores * u[: at + 1]).sum(axis=0) + _times(np.exp(since[at]) * q[at], S)
    +     S = np.einsum("tbni,tbnj->bnij", np.exp(decay[-1]) * k, u) + np.exp(since[-1])[..., None] * S
"""
_LINEAR = ("simple_gla", "gla", "gated_delta_rule", "kimi_delta_attention")
_OF_LINEAR = (*((_SUMS, op) for op in _LINEAR), *((_SOLVED, op) for op in _LINEAR[2:]))
ROWS = tuple(row for text, op in _OF_LINEAR for row in changes(text.format(op=op)))
