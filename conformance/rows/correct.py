"""Other spellings and orders that are right for everyone: rows that no law may refuse."""

from conformance.rows.row import changes

_IN_CHUNKS = """
    @ {op} _linear_attention.py _forward

    in chunks of 64 steps: first all writes of a chunk, which have decayed by sums of log decays, then all outputs
    - for t in steps:
    -     S = _step(x.at(t), S).after
    -     o[t] = _times(x.q[t], S)
    + for start in range(0, len(steps), 64):
    +     chunk = steps[start : start + 64]
    +     k, g = (np.stack([y[t] for t in chunk]) for y in (x.k, x.g))
    +     since, decay, u = np.cumsum(g, axis=0), [np.zeros((1, *g.shape[1:]))], x.v[chunk[0]][None][:0]
    +     for more in g[1:]:
    +         decay.append(np.concatenate([decay[-1] + more, decay[0]]))
    +
    +     def read(y, at):
    +         scores = (y * np.exp(decay[at])[: len(u)] * k[: at + 1][: len(u)]).sum(axis=-1, keepdims=True)
    +         return (scores * u[: at + 1]).sum(axis=0) + _times(np.exp(since[at]) * y, S)
    +
    +     for at, t in enumerate(chunk):
    +         w = x.v[t] if x.beta is None else x.beta[t] * (x.v[t] - read(k[at], at))
    +         u = np.concatenate([u, w[None]])
    +     for at, t in enumerate(chunk):
    +         o[t] = read(x.q[t], at)
    +     S = np.einsum("tbni,tbnj->bnij", np.exp(decay[-1]) * k, u) + np.exp(since[-1])[..., None] * S
"""
_REPEATED_FIRST = """
    @ {op} _linear_attention.py _heads

    shared heads repeated before they are normalised
    - q, k = _scale(call, scale) * _normalised(q, qk_norm_eps), _normalised(k, qk_norm_eps)
    + q, k = (np.repeat(x, call["N"] // x.shape[-2], axis=-2) for x in (q, k))
    + q, k = _scale(call, scale) * _normalised(q, qk_norm_eps), _normalised(k, qk_norm_eps)
"""
_LINEAR = ("simple_gla", "gla", "gated_delta_rule", "kimi_delta_attention")
_OF_LINEAR = (
    *((_IN_CHUNKS, op) for op in _LINEAR),
    *((_REPEATED_FIRST, op) for op in _LINEAR[2:]),
)
ROWS = tuple(row for text, op in _OF_LINEAR for row in changes(text.format(op=op))) + changes("""
    @ rev_cumsum _scan.py rev_cumsum

    summed from the end by one running sum
    - for t in reversed(range(y.shape[-1] - 1)):
    -     y[..., t] += y[..., t + 1]
    + y = np.flip(np.cumsum(np.flip(y, -1), axis=-1), -1)

    @ mlstm _gates.py log_sigmoid

    log sigmoid by the log of a sum of exponentials
    - np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))
    + -np.logaddexp(0.0, -x)

    @ mlstm _mlstm.py _write

    the memory's log weight without the digits that the new stabiliser lost
    - np.exp(stabilised_decay(a, m, m_new))
    + exp_difference(a + m, m_new)

    outer products of a write by einsum
    - gain[..., None, None] * k[..., :, None] * v[..., None, :]
    + np.einsum("...k,...v->...kv", gain[..., None] * k, v)

    @ mlstm _mlstm.py mlstm_recurrent

    the stabiliser rounded once more when it is returned
    - return h, state
    + return h, state._replace(m=1.0 * state.m)

    @ mlstm _mlstm.py mlstm_parallel

    weights as differences of log weights and the stabiliser
    - E = np.exp(causal_forget_matrix(alpha)) * exp_difference(i, m)[..., None, :]
    - e = np.exp(np.cumsum(alpha, axis=-1))
    + E, e = exp_difference(D, m[..., None]), exp_difference(carried, m)

    @ mlstm _mlstm.py _read

    the numerator times the reciprocal of the normaliser
    - numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]
    + numerator * (1 / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps))[..., None]

    the scale of q after the products
    - q = q / np.sqrt(q.shape[-1])
    - numerator = np.einsum("...kv,...k->...v", C, q)
    - nu = np.einsum("...k,...k->...", n, q)
    + numerator = np.einsum("...kv,...k->...v", C, q) / np.sqrt(q.shape[-1])
    + nu = np.einsum("...k,...k->...", n, q) / np.sqrt(q.shape[-1])

    @ mlstm _mlstm.py _backward

    outer products of the memory's gradient by einsum
    - dC += q_hat[:, t, :, :, None] * delta[:, :, None, :]
    + dC += np.einsum("bnk,bnv->bnkv", q_hat[:, t], delta)

    @ gru _gru.py gru

    the state blended from the old one
    - h = f * h + (1 - f) * z
    + h = h + (1 - f) * (z - h)

    the state blended from the candidate
    - h = f * h + (1 - f) * z
    + h = z + f * (h - z)

    @ slstm _slstm.py _step

    the output gate times the memory before the normaliser
    - o * _quotient(c, n)
    + _quotient(o * c, n)

    the memory's log weight without the digits that the new stabiliser lost
    - np.exp(stabilised_decay(a, m, m_new))
    + exp_difference(a + m, m_new)

    @ slstm _slstm.py slstm_backward

    gates computed again in the backward pass
    - before, step = done[number - 1]
    + ...
    + step = _step(inputs.at(t), weights, before, forget_gate)._replace(state=step.state)

    states kept for the backward pass rounded apart from those that steps continue from
    - before, step = done[number - 1]
    + ...
    + if number > 1:
    +     before = _step(inputs.at(steps[number - 2]), weights, done[number - 2][0], forget_gate).state
""")
