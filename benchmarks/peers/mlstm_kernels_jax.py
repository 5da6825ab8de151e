"""mlstm-kernels (NX-AI) in JAX: its native functions of sequences. Its arrays are head first, (B, N, S, ·)."""

import sys
from inspect import signature
from types import ModuleType, SimpleNamespace

import jax.numpy as jnp

try:
    import jax_triton  # noqa: F401
except ImportError:
    # Its packages import Triton kernels with the native functions, and jax-triton can be imported only in GPU builds.
    sys.modules["jax_triton"] = ModuleType("jax_triton")

from mlstm_kernels.jax.chunkwise import registry as chunkwise
from mlstm_kernels.jax.parallel import registry as parallel
from mlstm_kernels.jax.recurrent import mlstm_recurrent_sequence__native_fw
from mlstm_kernels.jax.recurrent.native_sequence_scan import mlstm_recurrent_sequence__native_fw as scan

from ._adapter import refuse


def _sequence(kernel, states=True):
    taken = frozenset(signature(kernel).parameters)

    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, chunk_size=None, eps=0.0, **unserved):
        S = q.shape[1]
        refuse(
            (unserved, ", ".join(unserved)),
            (S == 0, "sequences without steps"),
            (chunk_size is not None and "chunk_size" not in taken, "chunks"),
            (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
            (not states and initial_state is not None, "initial states: given one, it raises"),
        )
        # Its default where that divides S; else one chunk.
        options = {"chunk_size": chunk_size or (64 if S % 64 == 0 else S), "autocast_kernel_dtype": v.dtype}
        options |= {"state_dtype": jnp.promote_types(v.dtype, jnp.float32), "eps": eps}
        options = {name: option for name, option in options.items() if name in taken}
        if initial_state is not None:
            options |= dict(zip(("c_initial", "n_initial", "m_initial"), initial_state, strict=True))
        try:
            found = kernel(*(x.swapaxes(1, 2) for x in (q, k, v, i, f)), return_last_states=return_state, **options)
        except AssertionError as error:
            raise NotImplementedError(f"it refuses: {error}") from error
        if not return_state:
            return found.swapaxes(1, 2)
        h, (C, n, m) = found
        return h.swapaxes(1, 2), (C, n, m.reshape(n.shape[:2]))

    return SimpleNamespace(mlstm=mlstm)


chunkwise_native_autograd = _sequence(chunkwise["native_autograd"])
parallel_native_autograd = _sequence(parallel["native_autograd"])
parallel_native_custbw = _sequence(parallel["native_custbw"])
parallel_native_stablef_autograd = _sequence(parallel["native_stablef_autograd"])
parallel_native_stablef_custbw = _sequence(parallel["native_stablef_custbw"])
recurrent_sequence_native = _sequence(mlstm_recurrent_sequence__native_fw, states=False)
recurrent_scan_native = _sequence(scan, states=False)
