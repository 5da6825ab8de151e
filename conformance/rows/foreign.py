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
) + changes("""
    @ mlstm _mlstm.py mlstm_parallel

    weights from differences of cumulative sums, in which a log decay below -20 has no part
    - a, D = log_sigmoid(f), dtilde_matrix(i[..., None], f[..., None])
    - carried = np.cumsum(a, axis=-1) + m_0[..., None]
    - m = np.maximum(carried, D.max(axis=-1))
    - alpha = stabilised_decay(a, np.concatenate([m_0[..., None], m[..., :-1]], axis=-1), m)
    - E = np.exp(causal_forget_matrix(alpha)) * exp_difference(i, m)[..., None, :]
    - e = np.exp(np.cumsum(alpha, axis=-1))
    + a = log_sigmoid(f)
    + sums, closed = np.cumsum(np.where(a < -20.0, 0.0, a), axis=-1), np.where(a < -20.0, a, 0.0)
    + D = sums[..., :, None] - sums[..., None, :] + causal_forget_matrix(closed) + i[..., None, :]
    + carried = np.cumsum(a, axis=-1) + m_0[..., None]
    + m = np.maximum(carried, D.max(axis=-1))
    + E, e = exp_difference(D, m[..., None]), exp_difference(carried, m)

    @ mlstm _mlstm.py _backward

    log decays as differences of cumulative sums, in which one below -20 has no part, in the gradient
    - a = log_sigmoid(f)
    + ...
    + sums = np.cumsum(np.where(a < -20.0, 0.0, a), axis=1)
    + a = np.where(a < -20.0, a, np.concatenate([sums[:, :1], sums[:, 1:] - sums[:, :-1]], axis=1))

    gradient of forget gates from those of q and k at all later steps
    - dm = _dot(state, MLSTMState(dC, dn, None)) + g * (attained_at == 0)
    + total = _dot(states[S], dlast)
    + for t in reversed(range(S)):
    +     reads = np.einsum("bnk,bnk->bn", q_hat[:, t], dq[:, t])
    +     total = total + (reads - np.einsum("bnk,bnk->bn", k[:, t], dk[:, t]))
    +     da[:, t] = total + g * (attained_at < t + 1)
    + ...
""")
