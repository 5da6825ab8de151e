"""Faults of the mLSTM's parallel and chunkwise forms: they show where a chunk size is asked for."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="mlstm",
        name="remainder of a chunk dropped",
        module="_mlstm.py",
        function="mlstm_chunkwise",
        replace="""
            h = np.empty(v.shape)
            for start in range(0, q.shape[1], chunk_size):
                chunk = np.s_[:, start : start + chunk_size]
                h[chunk], state = mlstm_parallel(
                    q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
                )
        """,
        by="""
            h = np.zeros(v.shape)
            for start in range(0, q.shape[1] - q.shape[1] % chunk_size, chunk_size):
                chunk = np.s_[:, start : start + chunk_size]
                h[chunk], state = mlstm_parallel(
                    q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
                )
        """,
    ),
    Mutant(
        op="mlstm",
        name="a remainder does not reach the final state",
        module="_mlstm.py",
        function="mlstm_chunkwise",
        replace="chunk = np.s_[:, start : start + chunk_size]",
        by="""
            chunk = np.s_[:, start : start + chunk_size]
            if start + chunk_size > q.shape[1] and start:
                h[chunk], _ = mlstm_parallel(
                    q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps
                )
                break
        """,
    ),
    Mutant(
        op="mlstm",
        name="chunk leaves the carried memory out of its stabiliser",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="np.maximum(carried, D.max(axis=-1))",
        by="D.max(axis=-1)",
    ),
    Mutant(
        op="mlstm",
        name="stabiliser of a chunk's last step for all its steps",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="m = np.maximum(carried, D.max(axis=-1))",
        by="""
            m = np.maximum(carried, D.max(axis=-1))
            m = np.broadcast_to(m[..., -1:], m.shape)
        """,
    ),
    Mutant(
        op="mlstm",
        name="causal mask of a chunk off by one",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="np.exp(causal_forget_matrix(alpha))",
        by="np.tril(np.exp(causal_forget_matrix(alpha)), -1)",
    ),
    Mutant(
        op="mlstm",
        name="weights of a chunk from sums rounded at the size of the gates",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="np.exp(causal_forget_matrix(alpha)) * exp_difference(i, m)[..., None, :]",
        by="exp_difference(D, m[..., None])",
    ),
    Mutant(
        op="mlstm",
        name="carried memory of a chunk from sums rounded at the size of the gates",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="np.exp(np.cumsum(alpha, axis=-1))",
        by="exp_difference(carried, m)",
    ),
    Mutant(
        op="mlstm",
        name="carried memory decayed one step too few",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="log_sigmoid(f)",
        by="np.where(np.arange(f.shape[-1]), log_sigmoid(f), 0.0)",
    ),
    Mutant(
        op="mlstm",
        name="carried normaliser left out of a chunk",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace='scores.sum(axis=-1) + e * np.einsum("bntk,bnk->bnt", q, n)',
        by="scores.sum(axis=-1)",
    ),
    Mutant(
        op="mlstm",
        name="eps ignored where there are chunks",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace="np.maximum(np.abs(nu), normaliser_floor(m)) + eps",
        by="np.maximum(np.abs(nu), normaliser_floor(m))",
    ),
    Mutant(
        op="mlstm",
        name="initial state ignored where there are chunks",
        module="_mlstm.py",
        function="mlstm.whole",
        replace='options = {} if chunk_size is None else {"chunk_size": chunk_size}',
        by="""
            options = {} if chunk_size is None else {"chunk_size": chunk_size}
            state = state if chunk_size is None else _initial_state(arrays, None)
        """,
    ),
    Mutant(
        op="mlstm",
        name="final normaliser of a chunk forgets what it carried",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace='kept[..., None] * n + np.einsum("bnj,bnjk->bnk", written, k)',
        by='np.einsum("bnj,bnjk->bnk", written, k)',
    ),
    Mutant(
        op="mlstm",
        name="scores of a chunk in float32",
        module="_mlstm.py",
        function="mlstm_parallel",
        replace='np.einsum("bntk,bnjk->bntj", q, k)',
        by='np.einsum("bntk,bnjk->bntj", q, k).astype(np.float32)',
    ),
)
