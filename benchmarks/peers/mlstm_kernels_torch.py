"""mlstm-kernels (NX-AI), its native PyTorch functions of sequences.

Its arrays are head first, (B, N, S, ·), and its stabiliser has a last axis of 1. It says by assertions what it refuses.
"""

from inspect import signature
from types import SimpleNamespace

import torch
from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_sequence_kernel

from ._adapter import refuse


def _sequence(kernel):
    taken = frozenset(signature(kernel).parameters)

    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, chunk_size=None, eps=0.0, **unserved):
        S, double = q.shape[1], v.dtype == torch.float64
        refuse(
            (unserved, ", ".join(unserved)),
            (S == 0, "sequences without steps"),
            (chunk_size is not None and "chunk_size" not in taken, "chunks"),
            (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
        )
        options = {
            # Its default where that divides S; else one chunk.
            "chunk_size": chunk_size or (64 if S % 64 == 0 else S),
            "autocast_kernel_dtype": torch.float32 if double else v.dtype,
            "dtype_state": torch.float64 if double else torch.float32,
        }
        options = {name: option for name, option in options.items() if name in taken}
        if initial_state is not None:
            C, n, m = initial_state
            options |= {"c_initial": C, "n_initial": n, "m_initial": m[..., None]}
        head_first = [x.transpose(1, 2) for x in (q, k, v, i, f)]
        try:
            found = kernel(*head_first, return_last_states=return_state, eps=eps, **options)
        except AssertionError as error:
            raise NotImplementedError(f"it refuses: {error}") from error
        if not return_state:
            return found.transpose(1, 2)
        h, (C, n, m) = found
        return h.transpose(1, 2), (C, n, m[..., 0])

    return SimpleNamespace(mlstm=mlstm)


chunkwise_native_autograd = _sequence(get_mlstm_kernel("chunkwise--native_autograd"))
chunkwise_native_custbw = _sequence(get_mlstm_kernel("chunkwise--native_custbw"))
parallel_native_autograd = _sequence(get_mlstm_kernel("parallel--native_autograd"))
parallel_native_custbw = _sequence(get_mlstm_kernel("parallel--native_custbw"))
parallel_native_stablef_autograd = _sequence(get_mlstm_kernel("parallel--native_stablef_autograd"))
parallel_native_stablef_custbw = _sequence(get_mlstm_kernel("parallel--native_stablef_custbw"))
recurrent_sequence_native = _sequence(get_mlstm_sequence_kernel("native_sequence__native"))
