"""Multi-head GRU with the reset gate inside the recurrent product.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8, with the update gate written as a forget gate; heads, their
grouping and the clipping of the state's gradient as in the xma layer of that name. Per head, row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

Backward, with dh' what reaches h' (from the step after, clipped, plus dy) and u the argument of each nonlinearity::

    du_z = dh'⊙(1−f)⊙(1−z²)        du_f = dh'⊙(h−z)⊙f⊙(1−f)        du_r = (du_z Wᵀ)⊙h⊙r⊙(1−r)
    dh = dh'⊙f + (du_z Wᵀ)⊙r + du_f W_fᵀ + du_r W_rᵀ
    dW = Σ_t (r⊙h)ᵀ du_z        dW_f = Σ_t hᵀ du_f        dW_r = Σ_t hᵀ du_r
"""

from typing import Any

import torch
from torch import Tensor

from reference.arguments import check_gru
from reference.backends import Request
from torch_impl._arrays import ACCUMULATION, TORCH, autocast_dtype, cast
from torch_impl._backends import KernelBackend, choose, explains, request
from torch_impl._call_cache import cached_by_signature
from torch_impl._gru.composed import DenseSteps, PackedSteps, Steps, Weights, backward, forward
from torch_impl._gru.triton import launch as kernels
from torch_impl._operators import (
    each,
    fold,
    needs_transform,
    no_second_derivative,
    operator,
    packing,
    plainly,
    transformable,
    unfold,
)
from torch_impl._products import summed

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
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, Tensor]:
    """The GRU over whole sequences, dense or packed (the equations stand at the head of this module).

    ``N``, the number of heads, is the largest of the six head counts; each divides it, and head n reads head
    ``n // (N/Nx)`` of an input with Nx heads, and likewise of a weight. The state and its gradient are carried in the
    accumulation dtype; every weight's gradient is one product after the loop, and deterministic.

    Args:
        input: x, ``(B, S, Nx, H)``, or ``(T, Nx, H)`` with `cu_seqlens`. Under autocast inputs and weights are cast to
            its dtype, the state to float32.
        weight: W, ``(Nw, H, H)``.
        forget_input: x_f, ``(B, S, Nxf, H)`` or ``(T, Nxf, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_input: x_r, ``(B, S, Nxr, H)`` or ``(T, Nxr, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        input_state: h before the first step, ``(B, N, H)``, in the accumulation dtype; None is zeros.
        gradient_clipping: bound, element by element, of the gradient that reaches a state from the step after it, or at
            the last step from the final state; that of the initial state is not clipped. No effect on the value.
        cu_seqlens: ``(B+1,)``, where each packed sequence starts and ends.
        max_seqlen: a length that no sequence exceeds; checked, never needed.
        kernel_backend: None picks by the arrays; naming one takes it or raises.

    Returns:
        ``(output, output_state)``: every h', ``(B, S, N, H)`` or ``(T, N, H)`` in the dtype of `input`, and the last of
        each sequence, ``(B, N, H)`` in the accumulation dtype; an empty sequence's is its initial state.

    Raises:
        TypeError: an argument is no tensor of a floating dtype, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, `cu_seqlens` is no packing, or the backend named
            cannot serve the call.
        RuntimeError: a second derivative is asked for.
    """
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    arrays, input_state = _autocast(arrays, input_state)
    check = _cached if cu_seqlens is None and kernel_backend is None else _checked
    backend = check(*arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, kernel_backend)
    clip = None if gradient_clipping is None else abs(float(gradient_clipping))
    if needs_transform(*arrays, input_state):
        output, state, *_ = _differentiable(*arrays, input_state, cu_seqlens, clip, torch.is_grad_enabled(), backend)
    else:
        output, state, *_ = _forward(*arrays, input_state, cu_seqlens, False, backend)
    return output, state


def _checked(x, W, xf, Wf, xr, Wr, input_state, gradient_clipping, cu_seqlens, max_seqlen, kernel_backend) -> str:
    call = check_gru(TORCH, x, W, xf, Wf, xr, Wr, input_state, gradient_clipping, cu_seqlens, max_seqlen)
    return choose(request(call, x, cu_seqlens is not None), kernel_backend).value


_cached = cached_by_signature(_checked)


def _autocast(arrays: _Arrays, state: Any) -> tuple[_Arrays, Any]:
    if (low := autocast_dtype(arrays[0])) is None:
        return arrays, state
    x, W, xf, Wf, xr, Wr = (cast(array, low) for array in arrays)
    return (x, W, xf, Wf, xr, Wr), cast(state, torch.float32)


@explains("gru")
def _gru_request(
    input, weight, forget_input, forget_weight, reset_input, reset_weight,
    input_state=None, gradient_clipping=None, cu_seqlens=None, max_seqlen=None, **_: Any,
) -> Request:  # fmt: skip
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    arrays, input_state = _autocast(arrays, input_state)
    call = check_gru(TORCH, *arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen)
    return request(call, arrays[0], cu_seqlens is not None)


def _heads(*arrays: Tensor) -> int:
    return max(array.shape[0 if number % 2 else -2] for number, array in enumerate(arrays))


def _steps(x: Tensor, N: int, cu_seqlens: Tensor | None) -> Steps:
    if cu_seqlens is None:
        return DenseSteps(x.shape[0], x.shape[1], N)
    return PackedSteps(packing("gru", "input", x, cu_seqlens), N, x.device)


def _weights(N: int, dtype: torch.dtype, W: Tensor, Wf: Tensor, Wr: Tensor) -> Weights:
    def whole(w: Tensor) -> Tensor:
        return w.to(dtype).repeat_interleave(N // w.shape[0], 0)

    return Weights(whole(W), torch.cat([whole(Wr), whole(Wf)], -1))


def _compute(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, keep, backend) -> list[Tensor]:
    if backend == "triton":
        return list(kernels.forward((x, W, xf, Wf, xr, Wr), h0, cu_seqlens))
    N, H, dtype = _heads(x, W, xf, Wf, xr, Wr), x.shape[-1], ACCUMULATION[x.dtype]
    steps = _steps(x, N, cu_seqlens)
    R = sum(steps.running)
    z, rf, states = (
        x.new_empty((N, rows, width), dtype=dtype) for rows, width in ((R, H), (R, 2 * H), (steps.B + R, H))
    )
    steps.gather(x, z)
    steps.gather(xr, rf[..., :H])
    steps.gather(xf, rf[..., H:])
    states[:, : steps.B] = 0.0 if h0 is None else steps.lanes_first(h0)
    forward(steps, _weights(N, dtype, W, Wf, Wr), z, rf, states)
    output, last = steps.scatter(states[:, steps.B :], N, x.dtype), steps.sequences_first(steps.last(states))
    return [output, last, z, rf, states] if keep else [output, last]


def _compute_shapes(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, keep, backend) -> list[Tensor]:
    N, H, dtype = _heads(x, W, xf, Wf, xr, Wr), x.shape[-1], ACCUMULATION[x.dtype]
    B = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    R = x.shape[0] * x.shape[1] if cu_seqlens is None else x.shape[0]
    outputs = [x.new_empty((*x.shape[:-2], N, H)), x.new_empty((B, N, H), dtype=dtype)]
    rows = ((R, H), (R, 2 * H), (B + R, H)) if keep and backend == "torch" else ()
    return [*outputs, *(x.new_empty((N, *shape), dtype=dtype) for shape in rows)]


def _compute_backward(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, dy, dlast, clip, backend, kept) -> list[Tensor]:
    if backend == "triton":
        (output,) = kept
        return kernels.backward((x, W, xf, Wf, xr, Wr), h0, cu_seqlens, output, dy, dlast, clip)
    z, rf, states = kept
    N, H, dtype = z.shape[0], x.shape[-1], z.dtype
    steps = _steps(x, N, cu_seqlens)
    before = steps.before(states)
    dh = torch.zeros_like(z) if dy is None else torch.empty_like(z)
    if dy is not None:
        steps.gather(dy, dh)
    dstate = states.new_zeros((N, steps.B, H)) if dlast is None else steps.lanes_first(dlast)
    dz, drf, dh0 = backward(steps, _weights(N, dtype, W, Wf, Wr), z, rf, before, dh, dstate, clip)
    dW = summed(rf[..., :H] * before, dz)
    dWrf = summed(before, drf)
    drs, dfs = (drf[..., :H], dWrf[..., :H]), (drf[..., H:], dWrf[..., H:])

    def shared(dw: Tensor, w: Tensor) -> Tensor:
        dw = dw.unflatten(0, (w.shape[0], N // w.shape[0])).sum(1)
        return dw.to(w.dtype)

    gradients = []
    for (dx, dw), inputs, w in zip(((dz, dW), dfs, drs), (x, xf, xr), (W, Wf, Wr), strict=True):
        gradients += [steps.scatter(dx, inputs.shape[-2], inputs.dtype), shared(dw, w)]
    return [*gradients, steps.sequences_first(dh0)]


def _compute_backward_shapes(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, dy, dlast, clip, backend, kept) -> list[Tensor]:
    state = _compute_shapes(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, False, backend)[1]
    return [*(array.new_empty(array.shape) for array in (x, W, xf, Wf, xr, Wr)), state]


_INPUTS = (
    "Tensor input, Tensor weight, Tensor forget_input, Tensor forget_weight, Tensor reset_input, Tensor reset_weight, "
    "Tensor? input_state, Tensor? cu_seqlens"
)
_forward = operator(f"gru_forward({_INPUTS}, bool keep, str backend) -> Tensor[]", _compute, _compute_shapes)
_backward = operator(
    f"gru_backward({_INPUTS}, Tensor? dy, Tensor? dstate, float? clip, str backend, Tensor[] kept) -> Tensor[]",
    _compute_backward,
    _compute_backward_shapes,
)


def _axes(packed: bool) -> list[int | None]:
    """The head axis of the arrays, the state and the packing."""
    tokens = 1 if packed else 2
    return [tokens, 0] * 3 + [1, None]


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, clip, keep, backend):
        return tuple(_forward(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, keep, backend))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.clip, _, ctx.backend = inputs
        kept = output[2:]
        # The kernels compute everything again from the output.
        ctx.save_for_backward(*tensors, *(output[:1] if ctx.backend == "triton" else kept))
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, dlast, *_):
        if dy is None and dlast is None:
            return (None,) * 11
        saved = ctx.saved_tensors
        arguments = *saved[:8], dy, dlast, ctx.clip, ctx.backend
        gradients = _backward(*arguments, saved[8:]) if plainly() else _Backward.apply(*arguments, *saved[8:])
        return *gradients[:6], None if saved[6] is None else gradients[6], None, None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        size, packed = info.batch_size, args[7] is not None
        if in_dims[7] is not None:
            return each(_Forward.apply, size, in_dims, args)
        folded = _Forward.apply(*fold(size, in_dims, args, [*_axes(packed), None, None, None]))
        return unfold(size, folded, (1 if packed else 2, 1, 0, 0, 0)[: len(folded)])


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, dy, dlast, clip, backend, *kept):
        return tuple(_backward(x, W, xf, Wf, xr, Wr, h0, cu_seqlens, dy, dlast, clip, backend, kept))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        no_second_derivative("gru")

    @staticmethod
    def vmap(info, in_dims, *args):
        size, packed, backend = info.batch_size, args[7] is not None, args[11]
        if in_dims[7] is not None:
            return each(_Backward.apply, size, in_dims, args)
        axes = _axes(packed)
        kept = [axes[0]] if backend == "triton" else [0, 0, 0]
        folded = _Backward.apply(*fold(size, in_dims, args, [*axes, axes[0], 1, None, None, *kept]))
        return unfold(size, folded, [*axes[:6], 1])


_differentiable = transformable(_Forward)
