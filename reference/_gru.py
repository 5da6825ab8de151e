"""Multi-head GRU with the reset gate inside the recurrent product, or after it.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8, with the update gate written as a forget gate. The heads,
their grouping and the clipping of the state's gradient follow the GRU layer of xma. Per head, with row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

With the reset gate after the product, the form of cuDNN, PyTorch and Keras (Cho et al. have it in their first version,
arXiv:1406.1078v1), ``z = tanh(r⊙(h W + b) + x)``.
"""

from typing import Any

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend, choose
from reference._gates import sigmoid
from reference.arguments import Call, check_gru


def gru(
    input: np.ndarray,
    weight: np.ndarray,
    forget_input: np.ndarray,
    forget_weight: np.ndarray,
    reset_input: np.ndarray,
    reset_weight: np.ndarray,
    input_state: np.ndarray | None = None,
    gradient_clipping: float | None = None,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    *,
    reset_after: bool = False,
    recurrent_bias: np.ndarray | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The GRU over whole sequences, dense or packed.

    Per head, with row vectors::

        r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

    With `reset_after`, ``z = tanh(r⊙(h W + b) + x)``.

    ``N``, the number of heads, is the largest of the six head counts. Each count divides it, and head n reads head
    ``n // (N/Nx)`` of an input with Nx heads; weights are read in the same way.

    Args:
        input: x, ``(B, S, Nx, H)``, or ``(T, Nx, H)`` with `cu_seqlens`.
        weight: W, ``(Nw, H, H)``.
        forget_input: x_f, ``(B, S, Nxf, H)`` or ``(T, Nxf, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_input: x_r, ``(B, S, Nxr, H)`` or ``(T, Nxr, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        input_state: h before the first step, ``(B, N, H)``; None means zeros.
        gradient_clipping: bound on the state's gradient in `gru_backward`; it does not affect the value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        reset_after: whether the reset gate is applied after the recurrent product.
        recurrent_bias: b, ``(Nw, H)``, only with `reset_after`; None means zeros.
        kernel_backend: None or ``numpy``.

    Returns:
        ``(output, output_state)``: every h', ``(B, S, N, H)`` or ``(T, N, H)``, and the last h' of each sequence,
        ``(B, N, H)``; an empty sequence returns its initial state. Both are float64.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, `cu_seqlens` is not a valid packing, or
            `recurrent_bias` is given without `reset_after`.
    """
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    after = {"reset_after": reset_after, "recurrent_bias": recurrent_bias}
    call = check_gru(NUMPY, *arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, **after)
    choose(call, input, kernel_backend, packed=cu_seqlens is not None)
    x, W, xf, Wf, xr, Wr = _expand(call, arrays)
    bias = _expand_bias(call, **after)
    h0 = np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)
    y, last = np.empty((*x.shape[:-2], call["N"], call["H"])), h0.copy()
    for b, steps in _sequences(call, cu_seqlens):
        h = h0[b]
        for t in steps:
            _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
            h = f * h + (1 - f) * z
            y[t] = h
        last[b] = h
    return y, last


def _gates(h, x, W, xf, Wf, xr, Wr, bias) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reset gate, forget gate and candidate of one step, each ``(B, N, H)``.

    With a bias, the reset gate is applied after the recurrent product.
    """
    r = sigmoid(_times(h, Wr) + xr)
    f = sigmoid(_times(h, Wf) + xf)
    z = np.tanh(_times(r * h, W) + x) if bias is None else np.tanh(r * (_times(h, W) + bias) + x)
    return r, f, z


def _times(h: np.ndarray, W: np.ndarray) -> np.ndarray:
    """``h W`` head by head: row vectors ``(B, N, H)`` times ``(N, H, H)``."""
    return np.einsum("bni,nij->bnj", h, W)


def _outer(h: np.ndarray, d: np.ndarray) -> np.ndarray:
    """``Σ_t hᵀd`` head by head over all steps, dense or packed: ``(N, H, H)``."""
    return np.einsum("bsni,bsnj->nij" if h.ndim == 4 else "tni,tnj->nij", h, d)


def gru_backward(
    input: np.ndarray,
    weight: np.ndarray,
    forget_input: np.ndarray,
    forget_weight: np.ndarray,
    reset_input: np.ndarray,
    reset_weight: np.ndarray,
    input_state: np.ndarray | None = None,
    gradient_clipping: float | None = None,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    *,
    reset_after: bool = False,
    recurrent_bias: np.ndarray | None = None,
    dy: np.ndarray,
    dstate: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Gradient of `gru`: the loop of the forward pass in reverse order.

    At step t, dh' is the gradient that reaches h_t from the next step (at the last step, from the final state), clipped
    elementwise to ``±|gradient_clipping|``, plus dy_t. With u the argument of each nonlinearity::

        du_z = dh'⊙(1−f)⊙(1−z²)        du_f = dh'⊙(h−z)⊙f⊙(1−f)        du_r = (du_z Wᵀ)⊙h⊙r⊙(1−r)
        dh = dh'⊙f + (du_z Wᵀ)⊙r + du_f W_fᵀ + du_r W_rᵀ
        dW = Σ_t (r⊙h)ᵀ du_z        dW_f = Σ_t hᵀ du_f        dW_r = Σ_t hᵀ du_r

    and dx = du_z, dx_f = du_f, dx_r = du_r. With the reset gate after the product p = h W + b, dp = du_z⊙r::

        du_r = du_z⊙p⊙r⊙(1−r)        dh = dh'⊙f + dp Wᵀ + du_f W_fᵀ + du_r W_rᵀ        dW = Σ_t hᵀ dp        db = Σ_t dp

    A head that is read by several heads receives the sum of their gradients.
    The gradient of the initial state is not clipped.

    Args:
        input, weight, forget_input, forget_weight, reset_input, reset_weight: as in `gru`.
        input_state, gradient_clipping, cu_seqlens, max_seqlen, reset_after, recurrent_bias: as in `gru`.
        dy: cotangent of the output.
        dstate: cotangent of the output state; None means zeros.

    Returns:
        Gradients by argument name, with ``input_state`` and ``recurrent_bias`` if they were given. All are float64.

    Raises:
        TypeError, ValueError: as in `gru`.
    """
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    after = {"reset_after": reset_after, "recurrent_bias": recurrent_bias}
    call = check_gru(NUMPY, *arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, "gru_backward", **after)
    call.kind(dy=dy)
    call.shape("dy", dy, "B S N H" if cu_seqlens is None else "T N H")
    x, W, xf, Wf, xr, Wr = _expand(call, arrays)
    bias = _expand_bias(call, **after)
    y, _ = gru(*arrays, input_state, None, cu_seqlens, **after)
    dy = float64(dy)
    h0 = np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)
    dh0 = np.zeros(h0.shape) if dstate is None else float64(dstate)
    dx, dxf, dxr, h_prev, read, dread = (np.empty(y.shape) for _ in range(6))
    bound = np.inf if gradient_clipping is None else abs(gradient_clipping)
    for b, steps in _sequences(call, cu_seqlens):
        dh = dh0[b]
        for position, t in reversed(list(enumerate(steps))):
            h = h_prev[t] = y[steps[position - 1]] if position else h0[b]
            r, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
            dh = np.clip(dh, -bound, bound) + dy[t]
            dx[t] = dh * (1 - f) * (1 - z * z)
            dxf[t] = dh * (h - z) * f * (1 - f)
            if bias is None:
                drh = _times(dx[t], W.mT)
                dxr[t] = drh * h * r * (1 - r)
                through = drh * r
                read[t], dread[t] = r * h, dx[t]
            else:
                dp = dx[t] * r
                dxr[t] = dx[t] * (_times(h, W) + bias) * r * (1 - r)
                through = _times(dp, W.mT)
                read[t], dread[t] = h, dp
            dh = dh * f + through + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
        dh0[b] = dh
    dW, dWf, dWr = _outer(read, dread), _outer(h_prev, dxf), _outer(h_prev, dxr)
    db = dread.sum(axis=tuple(range(dread.ndim - 2)))
    gradients = dict(
        input=_reduce(dx, call["Nx"], -2),
        weight=_reduce(dW, call["Nw"], 0),
        forget_input=_reduce(dxf, call["Nxf"], -2),
        forget_weight=_reduce(dWf, call["Nwf"], 0),
        reset_input=_reduce(dxr, call["Nxr"], -2),
        reset_weight=_reduce(dWr, call["Nwr"], 0),
    )
    given = {"input_state": input_state, "recurrent_bias": recurrent_bias}
    optional = {"input_state": dh0, "recurrent_bias": _reduce(db, call["Nw"], 0)}
    return gradients | {name: gradient for name, gradient in optional.items() if given[name] is not None}


def _expand_bias(call: Call, reset_after: bool, recurrent_bias: np.ndarray | None) -> np.ndarray | None:
    """The recurrent bias of all heads, ``(N, H)``; None if the reset gate is applied before the product."""
    if not reset_after:
        return None
    if recurrent_bias is None:
        return np.zeros((call["N"], call["H"]))
    return np.repeat(float64(recurrent_bias), call["N"] // call["Nw"], axis=0)


def _expand(call: Call, arrays: Any) -> list[np.ndarray]:
    """Every input and weight expanded to N heads: head n is head ``n // (N/Nx)`` of the given array."""
    axes = (-2, 0) * 3
    return [
        np.repeat(float64(array), call["N"] // array.shape[axis], axis=axis)
        for array, axis in zip(arrays, axes, strict=True)
    ]


def _reduce(gradient: np.ndarray, heads: int, axis: int) -> np.ndarray:
    """Transpose of `_expand`: sum the gradients over the heads that share one head."""
    axis %= gradient.ndim
    shape = gradient.shape
    return gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum(axis=axis + 1)


def _sequences(call: Call, cu_seqlens: np.ndarray | None) -> list[tuple[slice, list]]:
    """The sequences that are computed together, and the indices of their steps: a dense batch, or a packed sequence."""
    if cu_seqlens is None:
        return [(slice(None), [(slice(None), t) for t in range(call["S"])])]
    bounds = [int(bound) for bound in cu_seqlens]
    return [(slice(b, b + 1), [slice(t, t + 1) for t in range(bounds[b], bounds[b + 1])]) for b in range(call["B"])]
