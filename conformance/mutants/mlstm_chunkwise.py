"""Faults of the mLSTM's parallel and chunkwise forms: they show where a chunk size is asked for."""

from conformance.mutants._mutant import Mutant

ROWS = (
    Mutant(
        "mlstm",
        "remainder of a chunk dropped",
        "_mlstm.py",
        "    h = np.empty(v.shape)\n    for start in range(0, q.shape[1], chunk_size):\n",
        "    h = np.zeros(v.shape)\n    for start in range(0, q.shape[1] - q.shape[1] % chunk_size, chunk_size):\n",
    ),
    Mutant(
        "mlstm",
        "a remainder does not reach the final state",
        "_mlstm.py",
        "        h[chunk], state = mlstm_parallel(",
        "        if start + chunk_size > q.shape[1] and start:\n"
        "            h[chunk], _ = mlstm_parallel(\n"
        "                q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps\n"
        "            )\n"
        "            break\n"
        "        h[chunk], state = mlstm_parallel(",
    ),
    Mutant(
        "mlstm",
        "chunk leaves the carried memory out of its stabiliser",
        "_mlstm.py",
        "    m = np.maximum(carried, D.max(axis=-1))\n    E = ",
        "    m = D.max(axis=-1)\n    E = ",
    ),
    Mutant(
        "mlstm",
        "stabiliser of a chunk's last step for all its steps",
        "_mlstm.py",
        "    m = np.maximum(carried, D.max(axis=-1))\n    E = ",
        "    m = np.maximum(carried, D.max(axis=-1))\n    m = np.broadcast_to(m[..., -1:], m.shape)\n    E = ",
    ),
    Mutant(
        "mlstm",
        "causal mask of a chunk off by one",
        "_mlstm.py",
        "    E = exp_difference(D, m[..., None])\n",
        "    E = np.tril(exp_difference(D, m[..., None]), -1)\n",
    ),
    Mutant(
        "mlstm",
        "carried memory decayed one step too few",
        "_mlstm.py",
        "    carried = np.cumsum(log_sigmoid(f), axis=-1) + m_0[..., None]\n",
        "    carried = np.cumsum(np.where(np.arange(f.shape[-1]), log_sigmoid(f), 0.0), axis=-1) + m_0[..., None]\n",
    ),
    Mutant(
        "mlstm",
        "carried normaliser left out of a chunk",
        "_mlstm.py",
        '    nu = scores.sum(axis=-1) + e * np.einsum("bntk,bnk->bnt", q, n)\n',
        "    nu = scores.sum(axis=-1)\n",
    ),
    Mutant(
        "mlstm",
        "eps ignored where there are chunks",
        "_mlstm.py",
        "    h = numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]\n    kept",
        "    h = numerator / np.maximum(np.abs(nu), normaliser_floor(m))[..., None]\n    kept",
    ),
    Mutant(
        "mlstm",
        "initial state ignored where there are chunks",
        "_mlstm.py",
        '        options = {} if chunk_size is None else {"chunk_size": chunk_size}\n',
        '        options = {} if chunk_size is None else {"chunk_size": chunk_size}\n'
        "        state = state if chunk_size is None else _initial_state(arrays, None)\n",
    ),
    Mutant(
        "mlstm",
        "final normaliser of a chunk forgets what it carried",
        "_mlstm.py",
        '    n_last = kept[..., None] * n + np.einsum("bnj,bnjk->bnk", written, k)\n',
        '    n_last = np.einsum("bnj,bnjk->bnk", written, k)\n',
    ),
    Mutant(
        "mlstm",
        "scores of a chunk in float32",
        "_mlstm.py",
        '    scores = np.einsum("bntk,bnjk->bntj", q, k) * E\n',
        '    scores = np.einsum("bntk,bnjk->bntj", q, k).astype(np.float32) * E\n',
    ),
)
