"""sLSTM: a scalar memory for each unit, with exponential gates and recurrent weights for each head.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 8 to 18, with the stabiliser m of appendix A. Per head, with row
vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

    a_t = log σ(u_f), or u_f with an exponential forget gate
    m_t = max(a_t + m_{t−1}, u_i)
    c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
    h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)

Backward, with dh_t the gradient of h_t (from the next step, clipped, plus the cotangent of the output)::

    du_o = dh_t⊙(c_t/n_t)⊙o⊙(1−o)        dc += dh_t⊙o/n_t        dn −= dh_t⊙h_t/n_t
    du_z = gain⊙dc⊙(1−z²)                du_i = gain⊙(z⊙dc + dn)
    dc ← decay⊙dc        dn ← decay⊙dn        du_f = (c_{t−1}⊙dc + n_{t−1}⊙dn)⊙∂a_t/∂u_f
    dh_{t−1} = Σ_x du_x W_xᵀ             dW_x = Σ_t h_{t−1}ᵀ du_x
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import SLSTMState, check_flag, check_sequential, check_slstm, check_slstm_step
from reference.backends import Request
from torch_impl._arrays import TORCH, autocast_dtype, cast
from torch_impl._backends import KernelBackend, choose, explains, request
from torch_impl._call_cache import cached_by_signature
from torch_impl._slstm.arguments import Arguments
from torch_impl._slstm.autograd import SLSTM

# As for `MLSTMState`: exported programs and saved files may contain a state.
pytree._register_namedtuple(SLSTMState, serialized_type_name="gatespec.SLSTMState")
torch.serialization.add_safe_globals([SLSTMState])


_Arrays = tuple[Any, Any, Any, Any, Any, Any, Any, Any]


class _Options(TypedDict, total=False):
    """The keywords of `slstm` that do not change the type of its result."""

    initial_state: SLSTMState | None
    forget_gate: str
    gradient_clipping: float | None
    cu_seqlens: Tensor | None
    max_seqlen: int | None
    kernel_backend: KernelBackend | str | None


@overload
def slstm(
    z: Tensor,
    i: Tensor,
    f: Tensor,
    o: Tensor,
    weight_z: Tensor,
    weight_i: Tensor,
    weight_f: Tensor,
    weight_o: Tensor,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...
@overload
def slstm(
    z: Tensor,
    i: Tensor,
    f: Tensor,
    o: Tensor,
    weight_z: Tensor,
    weight_i: Tensor,
    weight_f: Tensor,
    weight_o: Tensor,
    *,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, SLSTMState]: ...
@overload
def slstm(
    z: Tensor,
    i: Tensor,
    f: Tensor,
    o: Tensor,
    weight_z: Tensor,
    weight_i: Tensor,
    weight_f: Tensor,
    weight_o: Tensor,
    *,
    return_state: bool,
    **options: Unpack[_Options],
) -> Tensor | tuple[Tensor, SLSTMState]: ...
def slstm(
    z: Tensor,
    i: Tensor,
    f: Tensor,
    o: Tensor,
    weight_z: Tensor,
    weight_i: Tensor,
    weight_f: Tensor,
    weight_o: Tensor,
    *,
    initial_state: SLSTMState | None = None,
    return_state: bool = False,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
    sequence_group: None = None,
) -> Tensor | tuple[Tensor, SLSTMState]:
    """The sLSTM over whole sequences, dense or packed.

    Per head, with row vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

        a_t = log σ(u_f), or u_f with an exponential forget gate
        m_t = max(a_t + m_{t−1}, u_i)
        c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
        h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)

    States and their gradients are carried in the accumulation dtype. The gradients of the weights are one product after
    the loop, and are deterministic.

    Args:
        z: preactivations of the cell input, ``(B, S, N, H)``, or ``(T, N, H)`` with `cu_seqlens`. Under autocast
            preactivations and weights are cast to its dtype, and states to float32.
        i: of the input gate, same shape, below +∞; at −∞ the step writes nothing.
        f: of the forget gate, same shape; −∞ empties the memory, +∞ keeps all of it (not with ``"exp"``).
        o: of the output gate, same shape.
        weight_z, weight_i, weight_f, weight_o: recurrent weights, ``(N, H, H)``.
        initial_state: ``(c, n, m, h)`` before the first step, each ``(B, N, H)`` in the accumulation dtype, with n of
            at least 0; None means the empty state, ``c = n = h = 0`` and ``m = −∞``.
        return_state: also return the state after the last step.
        forget_gate: ``"sigmoid"`` or ``"exp"``.
        gradient_clipping: elementwise bound on the gradient that reaches h from the next step, or at the last step from
            the final state. Gradients of c and n, and of the initial state, are not clipped. It does not affect the
            value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        kernel_backend: the backend to use; an error if it does not support the call. None means a kernel that a run on
            such hardware has proven, else composed code.
        sequence_group: only None, unlike in `mlstm`, because each step needs the one before it: shard the batch or the
            heads instead.

    Returns:
        h, with the shape and dtype of `z`; with `return_state`, ``(h, SLSTMState)``.

    Raises:
        TypeError: an argument is not a floating-point tensor, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, `cu_seqlens` is not a valid packing, `sequence_group` is
            given, or the requested backend does not support the call.
        NotImplementedError: a second derivative is requested.
    """
    check_sequential("slstm", "sequence_group", sequence_group)
    if return_state is not True and return_state is not False:
        check_flag("slstm", "return_state", return_state)
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    arrays, initial_state = _autocast(arrays, initial_state)
    check = _cached if cu_seqlens is None and kernel_backend is None else _checked
    backend = check(*arrays, initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen, kernel_backend)
    state = (None,) * 4 if initial_state is None else tuple(initial_state)
    clip = None if gradient_clipping is None else abs(float(gradient_clipping))
    arguments = Arguments._make((*arrays, *state, cu_seqlens, forget_gate, clip, backend))
    h, *last = SLSTM(arguments, *arrays, *state)
    return (h, SLSTMState(*last[:4])) if return_state else h


def _checked(*call: Any) -> str:
    *arguments, kernel_backend = call
    found = check_slstm(TORCH, *arguments)
    return choose(request(found, arguments[0], arguments[-2] is not None), kernel_backend).value


_cached = cached_by_signature(_checked)


def _autocast(arrays: _Arrays, state: Any) -> tuple[_Arrays, Any]:
    if (low := autocast_dtype(arrays[0])) is None:
        return arrays, state
    if isinstance(state, tuple | list):
        state = SLSTMState._make(cast(part, torch.float32) for part in state) if len(state) == 4 else state
    z, i, f, o, Wz, Wi, Wf, Wo = (cast(x, low) for x in arrays)
    return (z, i, f, o, Wz, Wi, Wf, Wo), state


@explains("slstm")
def _slstm_request(
    z, i, f, o, weight_z, weight_i, weight_f, weight_o, *,
    initial_state=None, return_state=False, forget_gate="sigmoid", gradient_clipping=None, cu_seqlens=None,
    max_seqlen=None,
) -> Request:  # fmt: skip
    check_flag("slstm", "return_state", return_state)
    arrays, initial_state = _autocast((z, i, f, o, weight_z, weight_i, weight_f, weight_o), initial_state)
    call = check_slstm(TORCH, *arrays, initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen)
    return request(call, arrays[0], cu_seqlens is not None)


def slstm_step(
    z: Tensor,
    i: Tensor,
    f: Tensor,
    o: Tensor,
    weight_z: Tensor,
    weight_i: Tensor,
    weight_f: Tensor,
    weight_o: Tensor,
    state: SLSTMState,
    *,
    forget_gate: str = "sigmoid",
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, SLSTMState]:
    """One step of the sLSTM, as used to generate text; the shapes are those of `slstm` without ``S``.

    Args:
        z, i, f, o: ``(B, N, H)``.
        weight_z, weight_i, weight_f, weight_o: ``(N, H, H)``.
        state: the state before the step, in the accumulation dtype; it is not overwritten.
        forget_gate, kernel_backend: as in `slstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, H)``, in the dtype of `z`, and the state after the step.

    Raises:
        TypeError, ValueError, NotImplementedError: as in `slstm`.
    """
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    arrays, state = _autocast(arrays, state)
    check = _step_cached if kernel_backend is None else _step_checked
    backend = check(*arrays, state, forget_gate, kernel_backend)
    tensors = [*(x.unsqueeze(1) for x in arrays[:4]), *arrays[4:], *state]
    h, *last = SLSTM(Arguments(*tensors, forget_gate=forget_gate, backend=backend), *tensors)
    return h.squeeze(1), SLSTMState(*last[:4])


def _step_checked(*call: Any) -> str:
    *arguments, kernel_backend = call
    return choose(request(check_slstm_step(TORCH, *arguments), arguments[0]), kernel_backend).value


_step_cached = cached_by_signature(_step_checked)


@explains("slstm_step")
def _step_request(
    z, i, f, o, weight_z, weight_i, weight_f, weight_o, state, *, forget_gate="sigmoid"
) -> Request:  # fmt: skip
    arrays, state = _autocast((z, i, f, o, weight_z, weight_i, weight_f, weight_o), state)
    return request(check_slstm_step(TORCH, *arrays, state, forget_gate), arrays[0])
