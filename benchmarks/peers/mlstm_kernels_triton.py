"""mlstm-kernels (NX-AI), its Triton kernels of sequences: on a GPU, or on a CPU with TRITON_INTERPRET=1.

Its arrays are head first, (B, N, S, ·), and its stabiliser has a last axis of 1. It says by assertions what it refuses.
"""

import os
from types import SimpleNamespace

from mlstm_kernels.torch import get_mlstm_kernel

from ._adapter import refuse

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from triton.runtime.autotuner import Autotuner

    # Nothing can be timed under the interpreter: the first configuration stands for all.
    Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **{**options, **self.configs[0].all_kwargs()})


def _sequence(kernel, *, smallest, chunks):
    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, chunk_size=None, eps=0.0, **unserved):
        S, dims = q.shape[1], (q.shape[-1], v.shape[-1])
        # The largest block up to 64 that divides S, unless one is named.
        chunk = chunk_size or min(64, S & -S)
        refuse(
            (unserved, ", ".join(unserved)),
            (S == 0 or chunk < smallest or S % chunk, f"{S} steps in blocks of {chunk}"),
            (not chunks and chunk_size is not None, "chunks"),
            (any(dim < smallest or dim & (dim - 1) for dim in dims), "head dims of {} and {}".format(*dims)),
            (INTERPRETED and max(S, *dims) > 64, "sizes above 64 under the interpreter, which takes minutes for them"),
            (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
        )
        options = {"chunk_size": chunk} if chunks else {}
        if initial_state is not None:
            C, n, m = initial_state
            options |= {"c_initial": C, "n_initial": n, "m_initial": m[..., None]}
        head_first = [x.transpose(1, 2) for x in (q, k, v, i, f)]
        try:
            found = kernel(
                *head_first, return_last_states=return_state, eps=eps, autocast_kernel_dtype=v.dtype, **options
            )
        except AssertionError as error:
            raise NotImplementedError(f"it refuses: {error}") from error
        if not return_state:
            return found.transpose(1, 2)
        h, (C, n, m) = found
        return h.transpose(1, 2), (C, n, m[..., 0])

    return SimpleNamespace(mlstm=mlstm)


xl_chunk = _sequence(get_mlstm_kernel("chunkwise--triton_xl_chunk"), smallest=16, chunks=True)
limit_chunk = _sequence(get_mlstm_kernel("chunkwise--triton_limit_chunk"), smallest=16, chunks=True)
limit_headdim = _sequence(get_mlstm_kernel("parallel--triton_limit_headdim"), smallest=64, chunks=False)
