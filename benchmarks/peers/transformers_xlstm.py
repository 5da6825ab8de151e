"""The mLSTM functions of transformers' xLSTM model, which it defines for installations without the package `xlstm`.

Arrays are head first, (B, N, S, ·), and the stabiliser has a last axis of 1.
"""

from types import SimpleNamespace

import torch
import transformers.utils

# Its own functions are defined only where `xlstm` is not there, or is not seen.
_seen = transformers.utils.is_xlstm_available
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import (  # noqa: E402
    mlstm_chunkwise_native_autograd,
    mlstm_recurrent_sequence_native,
    mlstm_recurrent_step_native,
    wrap_chunkwise_arbitrary_sequence_length,
)

from ._adapter import refuse  # noqa: E402

transformers.utils.is_xlstm_available = _seen


def _any_length(*args, c_initial=None, **options):
    q, k, v, i, f = args
    kernels = (mlstm_chunkwise_native_autograd, mlstm_recurrent_sequence_native, mlstm_recurrent_step_native)
    return wrap_chunkwise_arbitrary_sequence_length(*kernels, q, k, v, f, i, c_initial=c_initial, **options)


def _sequence(kernel, chunks):
    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, chunk_size=None, eps=0.0, **unserved):
        S = q.shape[1]
        chunk = chunk_size or (64 if S % 64 == 0 or kernel is _any_length else S)
        refuse(
            (unserved, ", ".join(unserved)),
            (S == 0 or (kernel is mlstm_chunkwise_native_autograd and S % chunk), f"{S} steps in chunks of {chunk}"),
            (not chunks and chunk_size is not None, "chunks"),
            (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
        )
        options = {"chunk_size": chunk} if chunks else {"dtype_state": torch.promote_types(v.dtype, torch.float32)}
        if initial_state is not None:
            C, n, m = initial_state
            options |= {"c_initial": C, "n_initial": n, "m_initial": m[..., None]}
        # It takes apart the axes of what it is given by `view`, which needs arrays without strides.
        head_first = (x.transpose(1, 2).contiguous() for x in (q, k, v, i, f))
        h, (C, n, m) = kernel(*head_first, return_last_states=True, eps=eps, **options)
        return (h.transpose(1, 2), (C, n, m[..., 0])) if return_state else h.transpose(1, 2)

    return SimpleNamespace(mlstm=mlstm)


chunkwise = _sequence(mlstm_chunkwise_native_autograd, chunks=True)
any_length = _sequence(_any_length, chunks=True)
recurrent = _sequence(mlstm_recurrent_sequence_native, chunks=False)
