"""sLSTM: a scalar memory for each unit, with exponential gates and recurrent weights for each head.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 8 to 18, with the stabiliser m of appendix A. Per head, with row
vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

    a_t = log σ(u_f), or u_f with an exponential forget gate
    m_t = max(a_t + m_{t−1}, u_i)
    c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
    h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend, choose
from reference._gates import exp_difference, log_sigmoid, sigmoid, stabilised_decay
from reference.arguments import Call, SLSTMState, check_flag, check_slstm, check_slstm_step


class _Options(TypedDict, total=False):
    """The keywords of `slstm` that do not change the type of its result."""

    initial_state: SLSTMState | None
    forget_gate: str
    gradient_clipping: float | None
    cu_seqlens: np.ndarray | None
    max_seqlen: int | None
    kernel_backend: KernelBackend | str | None


@overload
def slstm(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> np.ndarray: ...
@overload
def slstm(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    *,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[np.ndarray, SLSTMState]: ...
@overload
def slstm(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    *,
    return_state: bool,
    **options: Unpack[_Options],
) -> np.ndarray | tuple[np.ndarray, SLSTMState]: ...
def slstm(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    *,
    initial_state: SLSTMState | None = None,
    return_state: bool = False,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> np.ndarray | tuple[np.ndarray, SLSTMState]:
    """The sLSTM over whole sequences, dense or packed.

    Per head, with row vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

        a_t = log σ(u_f), or u_f with an exponential forget gate
        m_t = max(a_t + m_{t−1}, u_i)
        c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
        h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)

    Args:
        z: preactivations of the cell input, ``(B, S, N, H)``, or ``(T, N, H)`` with `cu_seqlens`.
        i: of the input gate, same shape, below +∞; at −∞ the step writes nothing.
        f: of the forget gate, same shape; −∞ empties the memory, +∞ keeps all of it (not with ``"exp"``).
        o: of the output gate, same shape.
        weight_z, weight_i, weight_f, weight_o: recurrent weights, ``(N, H, H)``.
        initial_state: ``(c, n, m, h)`` before the first step, with n of at least 0; None means the empty state,
            ``c = n = h = 0`` and ``m = −∞``.
        return_state: also return the state after the last step.
        forget_gate: ``"sigmoid"`` or ``"exp"``.
        gradient_clipping: bound on the gradient of h in `slstm_backward`; it does not affect the value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        kernel_backend: None or ``numpy``.

    Returns:
        h, with the shape of `z`; with `return_state`, ``(h, SLSTMState)``. All are float64.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, or `cu_seqlens` is not a valid packing.
    """
    check_flag("slstm", "return_state", return_state)
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    call = check_slstm(NUMPY, *arrays, initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen)
    choose(call, z, kernel_backend, packed=cu_seqlens is not None)
    inputs, weights = _four(arrays)
    state = _initial_state(call, initial_state)
    h, last = np.empty(z.shape), SLSTMState(*(part.copy() for part in state))
    for b, steps in _sequences(call, cu_seqlens):
        before = SLSTMState(*(part[b] for part in state))
        for t in steps:
            before = _step(inputs.at(t), weights, before, forget_gate).state
            h[t] = before.h
        for part, of_b in zip(last, before, strict=True):
            part[b] = of_b
    return (h, last) if return_state else h


def slstm_step(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    state: SLSTMState,
    *,
    forget_gate: str = "sigmoid",
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, SLSTMState]:
    """One step of the sLSTM, as used to generate text; the shapes are those of `slstm` without ``S``.

    Args:
        z, i, f, o: ``(B, N, H)``.
        weight_z, weight_i, weight_f, weight_o: ``(N, H, H)``.
        state: the state before the step, ``(c, n, m, h)``, each ``(B, N, H)``.
        forget_gate, kernel_backend: as in `slstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, H)``, and the state after the step, which holds the same h. All are float64.

    Raises:
        TypeError, ValueError: as in `slstm`.
    """
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    call = check_slstm_step(NUMPY, *arrays, state, forget_gate)
    choose(call, z, kernel_backend)
    inputs, weights = _four(arrays)
    after = _step(inputs, weights, SLSTMState(*(float64(part) for part in state)), forget_gate).state
    return after.h.copy(), after


class _Four(NamedTuple):
    """One array for each of z, i, f and o."""

    z: Any
    i: Any
    f: Any
    o: Any

    def at(self, t: Any) -> "_Four":
        return _Four(*(x[t] for x in self))


class _Step(NamedTuple):
    """Results of a step: activations, the weights of memory and write, the slope da/du_f, and the state after it."""

    z: np.ndarray
    o: np.ndarray
    decay: np.ndarray
    gain: np.ndarray
    slope: np.ndarray
    writes_last: np.ndarray
    state: SLSTMState


@np.errstate(over="ignore")
def _step(x: _Four, weights: _Four, state: SLSTMState, forget_gate: str) -> _Step:
    """One step; ``writes_last`` says where m is attained by the step's own input gate."""
    c, n, m, h = state
    u = _Four(*(x_g + _times(h, W) for x_g, W in zip(x, weights, strict=True)))
    a, slope = (u.f, np.ones(u.f.shape)) if forget_gate == "exp" else (log_sigmoid(u.f), sigmoid(-u.f))
    m_new = np.maximum(a + m, u.i)
    decay, gain = np.exp(stabilised_decay(a, m, m_new)), exp_difference(u.i, m_new)
    z, o = np.tanh(u.z), sigmoid(u.o)
    c, n = decay * c + gain * z, decay * n + gain
    after = SLSTMState(c, n, m_new, o * _quotient(c, n))
    return _Step(z=z, o=o, decay=decay, gain=gain, slope=slope, writes_last=u.i > a + m, state=after)


def _quotient(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """``x / n``; 0 where nothing has been written."""
    return np.divide(x, n, out=np.zeros(x.shape), where=n != 0)


def _times(h: np.ndarray, W: np.ndarray) -> np.ndarray:
    """``h W`` head by head: row vectors ``(B, N, H)`` times ``(N, H, H)``."""
    return np.einsum("bni,nij->bnj", h, W)


def slstm_backward(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    *,
    initial_state: SLSTMState | None = None,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    dh: np.ndarray,
    dstate: SLSTMState | None = None,
) -> dict[str, Any]:
    """Gradient of `slstm`: one loop forward that stores every step, one loop backward.

    h does not depend on the stabiliser m, so the backward pass treats m as a constant. At step t, dh_t is the gradient
    that reaches h_t from the next step (at the last step, from the final state), clipped elementwise to
    ``±|gradient_clipping|``, plus the cotangent of the output. The step first differentiates its result, then its
    write, with ``decay = exp(a_t + m_{t−1} − m_t)`` and ``gain = exp(u_i − m_t)``::

        du_o = dh_t⊙(c_t/n_t)⊙o⊙(1−o)        dc += dh_t⊙o/n_t        dn −= dh_t⊙h_t/n_t
        du_z = gain⊙dc⊙(1−z²)                du_i = gain⊙(z⊙dc + dn)
        dc ← decay⊙dc        dn ← decay⊙dn        da_t = c_{t−1}⊙dc + n_{t−1}⊙dn        du_f = da_t⊙∂a_t/∂u_f
        dh_{t−1} = Σ_x du_x W_xᵀ             dW_x = Σ_t h_{t−1}ᵀ du_x

    and dx = du_x. Only the final state contains m itself. Of its cotangents, ``g = dm_T − c_T⊙dc_T − n_T⊙dn_T`` goes to
    whatever attained m_T: the write of step j (``du_i``) and the decay of every later step (``da``), or ``m_0`` (j =
    0). The gradient of the initial state is not clipped.

    Args:
        z, i, f, o, weight_z, weight_i, weight_f, weight_o: as in `slstm`.
        initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen: as in `slstm`.
        dh: cotangent of h.
        dstate: cotangents of the final state; None means zeros.

    Returns:
        Gradients by argument name, including ``initial_state`` (an `SLSTMState`) if one was given. All are float64.

    Raises:
        TypeError, ValueError: as in `slstm`.
    """
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    options = (forget_gate, gradient_clipping, cu_seqlens, max_seqlen)
    call = check_slstm(NUMPY, *arrays, initial_state, *options, function="slstm_backward")
    call.kind(dh=dh)
    call.shape("dh", dh, "B S N H" if cu_seqlens is None else "T N H")
    inputs, weights = _four(arrays)
    state, upstream = _initial_state(call, initial_state), float64(dh)
    dlast = SLSTMState(*(np.zeros(part.shape) for part in state) if dstate is None else map(float64, dstate))
    bound = np.inf if gradient_clipping is None else abs(gradient_clipping)
    dinputs, h_prev = _Four(*(np.empty(x.shape) for x in inputs)), np.empty(upstream.shape)
    dinitial = SLSTMState(*(np.zeros(part.shape) for part in state))
    for b, steps in _sequences(call, cu_seqlens):
        before, done, attained_at = SLSTMState(*(part[b] for part in state)), [], 0
        for number, t in enumerate(steps, 1):
            done.append((before, _step(inputs.at(t), weights, before, forget_gate)))
            before = done[-1][1].state
            attained_at = np.where(done[-1][1].writes_last, number, attained_at)
        dc, dn, dm, dh_next = (part[b] for part in dlast)
        g = dm - before.c * dc - before.n * dn
        for number, t in reversed(list(enumerate(steps, 1))):
            before, step = done[number - 1]
            after, h_prev[t] = step.state, before.h
            dh_t = np.clip(dh_next, -bound, bound) + upstream[t]
            dc = dc + _quotient(dh_t * step.o, after.n)
            dn = dn - _quotient(dh_t * after.h, after.n)
            du_z = step.gain * dc * (1 - step.z**2)
            du_i = step.gain * (step.z * dc + dn) + g * (attained_at == number)
            du_o = dh_t * _quotient(after.c, after.n) * step.o * (1 - step.o)
            dc, dn = step.decay * dc, step.decay * dn
            du_f = (before.c * dc + before.n * dn + g * (attained_at < number)) * step.slope
            du = _Four(du_z, du_i, du_f, du_o)
            for dx, du_x in zip(dinputs, du, strict=True):
                dx[t] = du_x
            dh_next = sum(_times(du_x, W.mT) for du_x, W in zip(du, weights, strict=True))
        dm = state.c[b] * dc + state.n[b] * dn + g * (attained_at == 0)
        for part, of_b in zip(dinitial, (dc, dn, dm, dh_next), strict=True):
            part[b] = of_b
    outer = "bsni,bsnj->nij" if cu_seqlens is None else "tni,tnj->nij"
    dweights = (np.einsum(outer, h_prev, dx) for dx in dinputs)
    named = dict(zip("zifo", dinputs, strict=True))
    named |= {f"weight_{name}": dW for name, dW in zip("zifo", dweights, strict=True)}
    return named if initial_state is None else {**named, "initial_state": dinitial}


def slstm_step_backward(
    z: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    o: np.ndarray,
    weight_z: np.ndarray,
    weight_i: np.ndarray,
    weight_f: np.ndarray,
    weight_o: np.ndarray,
    state: SLSTMState,
    *,
    forget_gate: str = "sigmoid",
    dh: np.ndarray,
    dstate: SLSTMState | None = None,
) -> dict[str, Any]:
    """Gradient of `slstm_step`, computed as `slstm_backward` of a sequence of one step.

    Args:
        z, i, f, o, weight_z, weight_i, weight_f, weight_o, state, forget_gate: as in `slstm_step`.
        dh: cotangent of h, ``(B, N, H)``.
        dstate: cotangents of the state after the step; None means zeros.

    Returns:
        Gradients by argument name; ``state`` is an `SLSTMState`. All are float64.
    """
    weights = (weight_z, weight_i, weight_f, weight_o)
    check_slstm_step(NUMPY, z, i, f, o, *weights, state, forget_gate, "slstm_step_backward")
    arrays = [*(x[:, None] for x in (z, i, f, o)), *weights]
    gradients = slstm_backward(*arrays, initial_state=state, forget_gate=forget_gate, dh=dh[:, None], dstate=dstate)
    dinitial = gradients.pop("initial_state")
    return {**{name: x[:, 0] if name in "zifo" else x for name, x in gradients.items()}, "state": dinitial}


def _four(arrays: Any) -> tuple[_Four, _Four]:
    """The preactivations and the weights of a call."""
    values = [float64(x) for x in arrays]
    return _Four(*values[:4]), _Four(*values[4:])


def _initial_state(call: Call, state: SLSTMState | None) -> SLSTMState:
    """A copy of ``state``, or the empty state if it is None."""
    if state is not None:
        return SLSTMState(*(float64(part) for part in state))
    c, n, m, h = np.zeros((4, call["B"], call["N"], call["H"]))
    return SLSTMState(c, n, m - np.inf, h)


def _sequences(call: Call, cu_seqlens: np.ndarray | None) -> Iterator[tuple[slice, list]]:
    """The sequences that are computed together, and the indices of their steps: a dense batch, or a packed sequence."""
    if cu_seqlens is None:
        return iter([(slice(None), [(slice(None), t) for t in range(call["S"])])])
    spans = enumerate(pairwise(cu_seqlens))
    return ((slice(b, b + 1), [slice(t, t + 1) for t in range(int(start), int(end))]) for b, (start, end) in spans)
