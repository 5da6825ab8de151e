"""Faults of the GRU's gradient: its clipping, its paths, its groups."""

from conformance.rows.row import changes

ROWS = changes("""
    @ gru _gru.py gru_backward

    clipped after dy is added
    - np.clip(dh, -bound, bound) + dy[t]
    + np.clip(dh + dy[t], -bound, bound)

    NaN clipped to the bound
    - np.clip(dh, -bound, bound)
    + np.fmax(np.fmin(dh, bound), -bound)

    final state's cotangent is not clipped
    - np.clip(dh, -bound, bound)
    + np.clip(dh, -bound, bound) if position + 1 < len(steps) else dh

    gradient's norm is clipped, not its elements
    - np.clip(dh, -bound, bound)
    + dh * np.minimum(1.0, bound / np.maximum(np.linalg.norm(dh), 1e-300))

    clipping accepted and ignored
    - np.inf if gradient_clipping is None else abs(gradient_clipping)
    + np.inf

    negative clipping clips to one value
    - abs(gradient_clipping)
    + gradient_clipping

    gradient of the initial state clipped
    - dh0[b] = dh
    + dh0[b] = np.clip(dh, -bound, bound)

    gradient of an empty packed sequence's initial state zero
    - dh0[b] = dh
    + dh0[b] = dh if steps else 0

    cotangent of the final state dropped
    - np.zeros(h0.shape) if dstate is None else float64(dstate)
    + np.zeros(h0.shape)

    gradient passes the reset gate unscaled
    - drh * r
    + drh

    gradient through the reset gate's weight dropped
    - dh * f + through + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
    + dh * f + through + _times(dxf[t], Wf.mT)

    gradient through the forget gate's weight dropped
    - dh * f + through + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
    + dh * f + through + _times(dxr[t], Wr.mT)

    gradient through the forget gate's weight not transposed
    - Wf.mT
    + Wf

    gradient past the forget gate dropped
    - dh * f + through
    + through

    recurrent bias's gradient is the last sequence's
    - dread.sum(axis=tuple(range(dread.ndim - 2)))
    + dread[-1] if cu_seqlens is not None else dread[-1].sum(axis=0)

    recurrent bias's gradient without the reset gate
    - dread.sum(axis=tuple(range(dread.ndim - 2)))
    + dx.sum(axis=tuple(range(dread.ndim - 2)))

    reset gate's path through the product's state dropped
    - through = _times(dp, W.mT)
    + through = _times(dx[t], W.mT)

    reset gate's gradient without the bias
    - dx[t] * (_times(h, W) + bias) * r * (1 - r)
    + dx[t] * _times(h, W) * r * (1 - r)

    forget gate's gradient with the other sign
    - h - z
    + z - h

    forget gate's gradient of h in place of h − z
    - h - z
    + h

    derivative of the sigmoid for that of the hyperbolic tangent
    - dh * (1 - f) * (1 - z * z)
    + dh * (1 - f) * z * (1 - z)

    weight's gradient without the reset gate
    - r * h
    + h

    weight's gradient takes the state after the step
    - _outer(h_prev, dxf)
    + _outer(y, dxf)

    weight's gradient is the last sequence's
    - _outer(h_prev, dxr)
    + _outer(h_prev[-1:], dxr[-1:])

    @ gru _gru.py _outer

    weight's gradient is summed in an order that changes
    - return np.einsum("bsni,bsnj->nij" if h.ndim == 4 else "tni,tnj->nij", h, d)
    + order = _times.__dict__.setdefault("order", np.random.default_rng(0)).permutation(len(h))
    + return np.einsum("bsni,bsnj->nij" if h.ndim == 4 else "tni,tnj->nij", h[order], d[order])

    @ gru _gru.py _reduce

    gradient of another head of the group
    - gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum(
    -     axis=axis + 1
    - )
    + gradient.reshape(*shape[:axis], shape[axis] // heads, heads, *shape[axis + 1 :]).sum(axis=axis)

    gradient is the mean of its group
    - gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum
    + gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).mean

    @ gru _gru.py gru_backward

    gradient of a weight in float32
    - _reduce(dW, call["Nw"], 0)
    + _reduce(dW, call["Nw"], 0).astype(np.float32)

    gradient of the initial state written into the cotangent
    - float64(dstate)
    + np.asarray(dstate, np.float64)
""")
