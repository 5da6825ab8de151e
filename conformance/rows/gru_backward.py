"""Faults of the GRU's gradient: its clipping, its paths, its groups."""

from conformance.rows.row import changes

ROWS = changes("""
    @ gru _gru.py gru_backward

    clipped after dy is added
    - np.clip(dh, -bound, bound) + dy[t]
    + np.clip(dh + dy[t], -bound, bound)

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

    gradient through the forget gate's weight not transposed
    - Wf.mT
    + Wf

    gradient past the forget gate dropped
    - dh * f + through
    + through

    recurrent bias's gradient is the last sequence's
    - db += dp
    + ...
    + if position + 1 == len(steps):
    +     db[...] = dp

    recurrent bias's gradient without the reset gate
    - db += dp
    + db += dx[t]

    reset gate's path through the product's state dropped
    - through = _times(dp, W.mT)
    + through = _times(dx[t], W.mT)

    reset gate's gradient without the bias
    - dx[t] * (_times(h, W) + bias) * r * (1 - r)
    + dx[t] * _times(h, W) * r * (1 - r)

    forget gate's gradient with the other sign
    - h - z
    + z - h

    derivative of the sigmoid for that of the hyperbolic tangent
    - dh * (1 - f) * (1 - z * z)
    + dh * (1 - f) * z * (1 - z)

    weight's gradient without the reset gate
    - r * h
    + h

    weight's gradient takes the state after the step
    - h[:, :, None] * dxf[t][:, None, :]
    + y[t][:, :, None] * dxf[t][:, None, :]

    weight's gradient is the last sequence's
    - dh = dh0[b]
    + ...
    + dWr[...] = 0

    weight's gradient is summed in an order that changes
    - for b, steps in _sequences(call, cu_seqlens):
    -     dh = dh0[b]
    -     for position, t in reversed(list(enumerate(steps))):
    -         h = y[steps[position - 1]] if position else h0[b]
    -         r, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    -         dh = np.clip(dh, -bound, bound) + dy[t]
    -         dx[t] = dh * (1 - f) * (1 - z * z)
    -         dxf[t] = dh * (h - z) * f * (1 - f)
    -         if bias is None:
    -             drh = _times(dx[t], W.mT)
    -             dxr[t] = drh * h * r * (1 - r)
    -             through = drh * r
    -             dW += (r * h)[:, :, None] * dx[t][:, None, :]
    -         else:
    -             dp = dx[t] * r
    -             dxr[t] = dx[t] * (_times(h, W) + bias) * r * (1 - r)
    -             through = _times(dp, W.mT)
    -             dW += h[:, :, None] * dp[:, None, :]
    -             db += dp
    -         dh = dh * f + through + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
    -         dWf += h[:, :, None] * dxf[t][:, None, :]
    -         dWr += h[:, :, None] * dxr[t][:, None, :]
    -     dh0[b] = dh
    + order = _times.__dict__.setdefault("order", np.random.default_rng(0)).permutation(call["B"])
    + sequences = _sequences(call, cu_seqlens)
    + for b, steps in (sequences[at] for at in order):
    +     dh = dh0[b]
    +     for position, t in reversed(list(enumerate(steps))):
    +         h = y[steps[position - 1]] if position else h0[b]
    +         r, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    +         dh = np.clip(dh, -bound, bound) + dy[t]
    +         dx[t] = dh * (1 - f) * (1 - z * z)
    +         dxf[t] = dh * (h - z) * f * (1 - f)
    +         if bias is None:
    +             drh = _times(dx[t], W.mT)
    +             dxr[t] = drh * h * r * (1 - r)
    +             through = drh * r
    +             dW += (r * h)[:, :, None] * dx[t][:, None, :]
    +         else:
    +             dp = dx[t] * r
    +             dxr[t] = dx[t] * (_times(h, W) + bias) * r * (1 - r)
    +             through = _times(dp, W.mT)
    +             dW += h[:, :, None] * dp[:, None, :]
    +             db += dp
    +         dh = dh * f + through + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
    +         dWf += h[:, :, None] * dxf[t][:, None, :]
    +         dWr += h[:, :, None] * dxr[t][:, None, :]
    +     dh0[b] = dh

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
