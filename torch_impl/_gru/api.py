"""Multi-head GRU with the reset gate inside the recurrent product, or after it.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8, with the update gate written as a forget gate. The heads,
their grouping and the clipping of the state's gradient follow the GRU layer of xma. Per head, with row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

Backward, with dh' the gradient of h' (from the next step, clipped, plus dy) and u the argument of each nonlinearity::

    du_z = dh'⊙(1−f)⊙(1−z²)        du_f = dh'⊙(h−z)⊙f⊙(1−f)        du_r = (du_z Wᵀ)⊙h⊙r⊙(1−r)
    dh = dh'⊙f + (du_z Wᵀ)⊙r + du_f W_fᵀ + du_r W_rᵀ
    dW = Σ_t (r⊙h)ᵀ du_z        dW_f = Σ_t hᵀ du_f        dW_r = Σ_t hᵀ du_r

With `reset_after`, p = h W + b, z = tanh(r⊙p + x) and dp = du_z⊙r. All recurrent products of a step are one product::

    du_r = du_z⊙p⊙r⊙(1−r)        dh = dh'⊙f + dp Wᵀ + du_f W_fᵀ + du_r W_rᵀ        dW = Σ_t hᵀ dp        db = Σ_t dp
"""

from typing import Any

import torch
from torch import Tensor

from reference.arguments import check_gru, check_sequential
from reference.backends import Request
from torch_impl._arrays import TORCH, autocast_dtype, cast
from torch_impl._backends import KernelBackend, choose, explains, request
from torch_impl._call_cache import cached_by_signature
from torch_impl._gru.arguments import Arguments
from torch_impl._gru.autograd import GRU

_Arrays = tuple[Any, Any, Any, Any, Any, Any]


def gru(
    input: Tensor,
    weight: Tensor,
    forget_input: Tensor,
    forget_weight: Tensor,
    reset_input: Tensor,
    reset_weight: Tensor,
    input_state: Tensor | None = None,
    gradient_clipping: float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    *,
    reset_after: bool = False,
    recurrent_bias: Tensor | None = None,
    kernel_backend: KernelBackend | str | None = None,
    sequence_group: None = None,
) -> tuple[Tensor, Tensor]:
    """The GRU over whole sequences, dense or packed.

    Per head, with row vectors::

        r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

    With `reset_after`, ``z = tanh(r⊙(h W + b) + x)``.

    ``N``, the number of heads, is the largest of the six head counts. Each count divides it, and head n reads head
    ``n // (N/Nx)`` of an input with Nx heads; weights are read in the same way. The state and its gradient are carried
    in the accumulation dtype. The gradient of every weight is one product after the loop, and is deterministic.

    Args:
        input: x, ``(B, S, Nx, H)``, or ``(T, Nx, H)`` with `cu_seqlens`. Under autocast inputs and weights are cast to
            its dtype, and the state to float32.
        weight: W, ``(Nw, H, H)``.
        forget_input: x_f, ``(B, S, Nxf, H)`` or ``(T, Nxf, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_input: x_r, ``(B, S, Nxr, H)`` or ``(T, Nxr, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        input_state: h before the first step, ``(B, N, H)``, in the accumulation dtype; None means zeros.
        gradient_clipping: elementwise bound on the gradient that reaches a state from the next step, or at the last
            step from the final state. The gradient of the initial state is not clipped. It does not affect the value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        reset_after: whether the reset gate is applied after the recurrent product, as in ``torch.nn.GRU``.
        recurrent_bias: b, ``(Nw, H)``, only with `reset_after`; None means zeros.
        kernel_backend: the backend to use; an error if it does not support the call. None means a kernel that a run on
            such hardware has proven, else composed code.
        sequence_group: only None, unlike in `mlstm`, because each step needs the one before it: shard the batch or the
            heads instead.

    Returns:
        ``(output, output_state)``: every h', ``(B, S, N, H)`` or ``(T, N, H)``, in the dtype of `input`, and the last
        h' of each sequence, ``(B, N, H)``, in the accumulation dtype; an empty sequence returns its initial state.

    Raises:
        TypeError: an argument is not a floating-point tensor, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, `cu_seqlens` is not a valid packing,
            `sequence_group` is given, `recurrent_bias` is given without `reset_after`, or the requested backend does
            not support the call.
        NotImplementedError: a second derivative is requested.
    """
    check_sequential("gru", "sequence_group", sequence_group)
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    arrays, input_state, recurrent_bias = _autocast(arrays, input_state, recurrent_bias)
    check = _cached if cu_seqlens is None and kernel_backend is None else _checked
    after = reset_after, recurrent_bias
    backend = check(*arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, *after, kernel_backend)
    clip = None if gradient_clipping is None else abs(float(gradient_clipping))
    options = {"gradient_clipping": clip, "reset_after": reset_after}
    arguments = Arguments(*arrays, input_state, recurrent_bias, cu_seqlens, **options, backend=backend)
    output, state, *_ = GRU(arguments, *arrays, input_state, recurrent_bias)
    return output, state


def _checked(*call: Any) -> str:
    *arguments, kernel_backend = call
    return choose(_gru_request(*arguments), kernel_backend).value


_cached = cached_by_signature(_checked)


def _autocast(arrays: _Arrays, state: Any, bias: Any) -> tuple[_Arrays, Any, Any]:
    if (low := autocast_dtype(arrays[0])) is None:
        return arrays, state, bias
    x, W, xf, Wf, xr, Wr = (cast(array, low) for array in arrays)
    return (x, W, xf, Wf, xr, Wr), cast(state, torch.float32), cast(bias, low)


@explains("gru")
def _gru_request(
    input, weight, forget_input, forget_weight, reset_input, reset_weight,
    input_state=None, gradient_clipping=None, cu_seqlens=None, max_seqlen=None, reset_after=False, recurrent_bias=None,
) -> Request:  # fmt: skip
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    arrays, input_state, recurrent_bias = _autocast(arrays, input_state, recurrent_bias)
    after = {"reset_after": reset_after, "recurrent_bias": recurrent_bias}
    call = check_gru(TORCH, *arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, **after)
    return request(call, arrays[0], cu_seqlens is not None)
