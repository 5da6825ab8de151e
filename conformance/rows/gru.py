"""Faults of the GRU's value: its gates, its heads, its packing."""

from conformance.rows.row import changes

ROWS = changes("""
    @ gru _gru.py _gates

    reset gate left out
    - r * h
    + h

    reset gate after the recurrent product, as in torch.nn.GRU
    - _times(r * h, W)
    + r * _times(h, W)

    reset gate on the input too
    - _times(r * h, W) + x
    + _times(r * h, W) + r * x

    reset gate before the product although it is to be after it
    - r * (_times(h, W) + bias)
    + _times(r * h, W) + bias

    recurrent bias outside the reset gate
    - r * (_times(h, W) + bias)
    + r * _times(h, W) + bias

    @ gru _gru.py _expand_bias

    recurrent bias ignored
    - recurrent_bias is None
    + recurrent_bias is None or reset_after

    @ gru _gru.py gru

    forget gate as an update gate, (1−f)⊙h + f⊙z
    - f * h + (1 - f) * z
    + (1 - f) * h + f * z

    forget gate of 1 does not keep the state bit by bit
    - f * h + (1 - f) * z
    + z + f * (h - z)

    @ gru _gru.py _gates

    forget gate with a bias of its own
    - _times(h, Wf) + xf
    + _times(h, Wf) + xf + 1

    forget and reset gate swapped
    - r = sigmoid(_times(h, Wr) + xr)
    - f = sigmoid(_times(h, Wf) + xf)
    + f = sigmoid(_times(h, Wr) + xr)
    + r = sigmoid(_times(h, Wf) + xf)

    no tanh on the candidate
    - np.tanh(_times(r * h, W) + x)
    + _times(r * h, W) + x

    reset gate reads the forget gate's input
    - _times(h, Wr) + xr
    + _times(h, Wr) + xf

    @ gru _gru.py _times

    weights transposed
    - np.einsum("bni,nij->bnj", h, W)
    + np.einsum("bni,nji->bnj", h, W)

    @ gru _gru.py _gates

    gates held between sigmoids of -8 and 8
    - _times(h, Wf) + xf
    + np.clip(_times(h, Wf) + xf, -8, 8)

    @ gru _gru.py _expand

    shared heads tiled, not repeated: head n reads n modulo their number
    - np.repeat(float64(array), call["N"] // array.shape[axis], axis=axis)
    + np.concatenate([float64(array)] * (call["N"] // array.shape[axis]), axis=axis)

    @ gru _gru.py gru

    weights of two gates swapped where heads are grouped
    - x, W, xf, Wf, xr, Wr = _expand(call, arrays)
    + ...
    + if call["Nwf"] < call["N"]:
    +     Wf, Wr = (Wr, Wf)

    ~ state rounded to bfloat16 at each step
    - h = f * h + (1 - f) * z
    + ...
    + h = (2**45 + 1) * h - ((2**45 + 1) * h - h)

    ~ state rounded to float16 at each step
    - h = f * h + (1 - f) * z
    + ...
    + h = h.astype(np.float16).astype(np.float64)

    state handed on in float16 every 512 steps
    - for t in steps:
    -     _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    -     h = f * h + (1 - f) * z
    -     y[t] = h
    + for number, t in enumerate(steps):
    +     if number and number % 512 == 0:
    +         h = h.astype(np.float16).astype(np.float64)
    +     _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    +     h = f * h + (1 - f) * z
    +     y[t] = h

    a tenth of all calls is off by 1e-6
    - for b, steps in _sequences(call, cu_seqlens):
    -     h = h0[b]
    -     for t in steps:
    -         _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    -         h = f * h + (1 - f) * z
    -         y[t] = h
    -     last[b] = h
    + ...
    + calls = _times.__dict__.setdefault("calls", np.random.default_rng(0))
    + y *= 1 + 1e-06 * (calls.random() < 0.1)

    final state shares the output's memory
    - for b, steps in _sequences(call, cu_seqlens):
    -     h = h0[b]
    -     for t in steps:
    -         _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr, bias)
    -         h = f * h + (1 - f) * z
    -         y[t] = h
    -     last[b] = h
    + ...
    + if cu_seqlens is None and call["S"]:
    +     last = y[:, -1]

    an empty packed sequence returns zeros
    - last[b] = h
    + last[b] = h if steps else 0

    an empty packed sequence takes its neighbour's state
    - last[b] = h
    + last[b] = h if steps or not b.start else last[b.start - 1 : b.start]

    state is not reset between packed sequences
    - h0[b]
    + h0[b] if not b.start else last[b.start - 1 : b.start]

    initial state ignored
    - input_state is None
    + input_state is None or call["B"]

    initial state ignored where sequences are packed
    - input_state is None
    + input_state is None or cu_seqlens is not None

    input overwritten
    - h0 = (
    -     np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)
    - )
    + ...
    + input *= 1 + 0.001

    answers in float32
    - return (y, last)
    + return (y.astype(np.float32), last)
""")
