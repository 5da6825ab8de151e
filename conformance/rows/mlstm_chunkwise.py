"""Faults of the mLSTM's parallel and chunkwise forms: they show where a chunk size is asked for."""

from conformance.rows.row import changes

ROWS = changes("""
    @ mlstm _mlstm.py mlstm_chunkwise

    remainder of a chunk dropped
    - h = np.empty(v.shape)
    - for start in range(0, q.shape[1], chunk_size):
    -     chunk = np.s_[:, start : start + chunk_size]
    -     h[chunk], state = mlstm_parallel(
    -         q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
    -     )
    + h = np.zeros(v.shape)
    + for start in range(0, q.shape[1] - q.shape[1] % chunk_size, chunk_size):
    +     chunk = np.s_[:, start : start + chunk_size]
    +     h[chunk], state = mlstm_parallel(
    +         q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
    +     )

    a remainder does not reach the final state
    - chunk = np.s_[:, start : start + chunk_size]
    + ...
    + if start + chunk_size > q.shape[1] and start:
    +     h[chunk], _ = mlstm_parallel(
    +         q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
    +     )
    +     break

    @ mlstm _mlstm.py mlstm_parallel

    chunk leaves the carried memory out of its stabiliser
    - np.maximum(carried, D.max(axis=-1))
    + D.max(axis=-1)

    stabiliser of a chunk's last step for all its steps
    - m = np.maximum(carried, D.max(axis=-1))
    + ...
    + m = np.broadcast_to(m[..., -1:], m.shape)

    causal mask of a chunk off by one
    - np.exp(causal_forget_matrix(alpha))
    + np.tril(np.exp(causal_forget_matrix(alpha)), -1)

    weights of a chunk from sums rounded at the size of the gates
    - np.exp(causal_forget_matrix(alpha)) * exp_difference(i, m)[..., None, :]
    + exp_difference(D, m[..., None])

    carried memory of a chunk from sums rounded at the size of the gates
    - np.exp(np.cumsum(alpha, axis=-1))
    + exp_difference(carried, m)

    carried memory decayed one step too few
    - log_sigmoid(f)
    + np.where(np.arange(f.shape[-1]), log_sigmoid(f), 0.0)

    carried normaliser left out of a chunk
    - scores.sum(axis=-1) + e * np.einsum("bntk,bnk->bnt", q, n)
    + scores.sum(axis=-1)

    eps ignored where there are chunks
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.maximum(np.abs(nu), normaliser_floor(m))

    @ mlstm _mlstm.py mlstm.whole

    initial state ignored where there are chunks
    - options = {} if chunk_size is None else {"chunk_size": chunk_size}
    + ...
    + state = state if chunk_size is None else _initial_state(arrays, None)

    @ mlstm _mlstm.py mlstm_parallel

    final normaliser of a chunk forgets what it carried
    - kept[..., None] * n + np.einsum("bnj,bnjk->bnk", written, k)
    + np.einsum("bnj,bnjk->bnk", written, k)

    scores of a chunk in float32
    - np.einsum("bntk,bnjk->bntj", q, k)
    + np.einsum("bntk,bnjk->bntj", q, k).astype(np.float32)
""")
