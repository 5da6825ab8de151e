"""Ways that are right, but lose digits which gatespec's own packages keep: rows that no law refuses a stranger."""

from conformance.rows.row import changes

ROWS = tuple(
    row
    for op in ("simple_gla", "gla", "gated_delta_rule", "kimi_delta_attention")
    for row in changes(f"""
    @ {op} _linear_attention.py _heads

    decays as differences of sums over 256 steps, in which a log decay below -16 has no part
    - g = g if rule.channels else g[..., None]
    + ...
    + usual = np.moveaxis(np.where(g < -16.0, 0.0, g), -3, 0)
    + sums = [np.cumsum(usual[at : at + 256], axis=0) for at in range(0, len(usual), 256)]
    + between = np.concatenate([usual[:0], *(x for each in sums for x in (each[:1], each[1:] - each[:-1]))])
    + g = np.where(g < -16.0, g, np.moveaxis(between, 0, -3))

    @ {op} _linear_attention.py _backward

    gradient of log decays as differences of what reaches all later steps
    - dS0[b] = dS
    + later = np.abs(dS0[b] * S).sum(axis=-1)
    + for t in reversed(steps):
    +     later = later + np.abs(x.q[t] * dx.q[t])
    +     of_decay = later if rule.channels else later.sum(axis=-1, keepdims=True)
    +     dx.g[t] = (dx.g[t] + of_decay) - of_decay
    + ...
    """)
)
