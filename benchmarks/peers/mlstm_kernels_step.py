"""mlstm-kernels (NX-AI), its PyTorch functions of one step: native, and Triton (on a CPU with TRITON_INTERPRET=1)."""

from types import SimpleNamespace

from mlstm_kernels.torch import get_mlstm_step_kernel

from ._adapter import refuse


def _step(kernel, *, differentiable=True, masked=True):
    def mlstm_step(q, k, v, i, f, state, *, eps=0.0, **unserved):
        C, n, m = state
        dims = (q.shape[-1], v.shape[-1])
        refuse(
            (unserved, ", ".join(unserved)),
            (not masked and not {*dims} <= {16, 32, 64}, "head dims of {} and {}".format(*dims)),
            (not differentiable and any(x.requires_grad for x in (q, k, v, i, f, C, n, m)), "gradients"),
        )
        # Its gates and its stabiliser have a last axis of 1.
        h, (C, n, m) = kernel(q, k, v, i[..., None], f[..., None], C, n, m[..., None], eps=eps, dtype_state=C.dtype)
        return h, (C, n, m[..., 0])

    return SimpleNamespace(mlstm_step=mlstm_step)


native = _step(get_mlstm_step_kernel("native"))
triton = _step(get_mlstm_step_kernel("triton"), differentiable=False, masked=False)
