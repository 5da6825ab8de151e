"""The mLSTM of the `xlstm` package (`xlstm.blocks.mlstm.backends`): parallel, chunkwise, and one step, in PyTorch.

Arrays are head first, (B, N, S, ·). Its step scales k by 1/√K, not q: the memory that it carries is ours over √K.
"""

from types import SimpleNamespace

from xlstm.blocks.mlstm.backends import chunkwise_simple, parallel_stabilized_simple, recurrent_step_stabilized_simple

from ._adapter import refuse


def _parallel(q, k, v, i, f, *, initial_state=None, return_state=False, eps=0.0, **unserved):
    refuse(
        (unserved, ", ".join(unserved)),
        (initial_state is not None or return_state, "states"),
        (q.shape[1] == 0, "sequences without steps"),
        (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
    )
    gates = (gate.transpose(1, 2)[..., None] for gate in (i, f))
    return parallel_stabilized_simple(*(x.transpose(1, 2) for x in (q, k, v)), *gates, eps=eps).transpose(1, 2)


def _chunkwise(q, k, v, i, f, *, initial_state=None, return_state=False, chunk_size=None, eps=0.0, **unserved):
    S = q.shape[1]
    chunk = chunk_size or (64 if S % 64 == 0 else S)
    refuse(
        (unserved, ", ".join(unserved)),
        (S == 0 or S % chunk, f"{S} steps in chunks of {chunk}"),
        (q.shape[-1] != v.shape[-1], "a V other than K"),
        (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
    )
    C, n, m = (None, None, None) if initial_state is None else initial_state
    # It takes apart the last axes of what it is given by `view`, which needs arrays without strides.
    head_first = (x.transpose(1, 2).contiguous() for x in (q, k, v, i, f))
    options = {"initial_C": C, "initial_n": n, "initial_m": m, "chunk_size": chunk, "eps": eps}
    h, (C, n, m) = chunkwise_simple(*head_first, **options, return_last_state=True)
    return (h.transpose(1, 2), (C, n, m[..., 0, 0])) if return_state else h.transpose(1, 2)


def _step(q, k, v, i, f, state, *, eps=0.0, **unserved):
    refuse((unserved, ", ".join(unserved)), (q.shape[-1] != v.shape[-1], "a V other than K"))
    scale = q.shape[-1] ** 0.5
    # It takes an axis away from what it is given, in place: these are copies.
    (C, n, m), rows = state, (x[..., None, :].clone() for x in (q, k, v))
    memory = (C / scale, (n / scale)[..., None], m[..., None, None])
    h, (C, n, m) = recurrent_step_stabilized_simple(*memory, *rows, i[..., None, None], f[..., None, None], eps=eps)
    return h[..., 0, :], (C * scale, (n * scale)[..., 0], m[..., 0, 0])


parallel = SimpleNamespace(mlstm=_parallel)
chunkwise = SimpleNamespace(mlstm=_chunkwise)
step = SimpleNamespace(mlstm_step=_step)
