"""mlstm-kernels (NX-AI), its PyTorch functions of one step: native, and Triton (on a CPU with TRITON_INTERPRET=1)."""

from types import SimpleNamespace

from mlstm_kernels.torch import get_mlstm_step_kernel


def _step(kernel, *, differentiable=True, masked=True):
    def mlstm_step(q, k, v, i, f, state, *, eps=0.0, **unserved):
        if unserved:
            raise NotImplementedError(f"it does not support {', '.join(unserved)}")
        C, n, m = state
        for refused, reason in (
            (not masked and any(dim & (dim - 1) for dim in (q.shape[-1], v.shape[-1])), "head dims of {} and {}"),
            (not differentiable and any(x.requires_grad for x in (q, k, v, i, f, C, n, m)), "gradients"),
        ):
            if refused:
                raise NotImplementedError(f"it does not support {reason.format(q.shape[-1], v.shape[-1])}")
        # Its gates and its stabiliser have a last axis of 1.
        h, (C, n, m) = kernel(q, k, v, i[..., None], f[..., None], C, n, m[..., None], eps=eps, dtype_state=C.dtype)
        return h, (C, n, m[..., 0])

    return SimpleNamespace(mlstm_step=mlstm_step)


native = _step(get_mlstm_step_kernel("native"))
triton = _step(get_mlstm_step_kernel("triton"), differentiable=False, masked=False)
