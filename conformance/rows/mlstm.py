"""Faults of the mLSTM's value, step by step: its memory, its normaliser, its gates, its packing."""

from conformance.rows.row import changes

ROWS = changes("""
    @ mlstm _mlstm.py _write

    the stabiliser is not the maximum
    - np.maximum(a + m, i)
    + a + m

    the stabiliser does not decay
    - np.maximum(a + m, i)
    + np.maximum(m, i)

    the other candidate in place of a stabiliser that is NaN
    - np.maximum(a + m, i)
    + np.fmax(a + m, i)

    the decay from a sum rounded at the size of the gates
    - np.exp(stabilised_decay(a, m, m_new))
    + exp_difference(a + m, m_new)

    one stabiliser for all heads
    - np.maximum(a + m, i)
    + np.broadcast_to(np.maximum(a + m, i).max(axis=-1, keepdims=True), m.shape)

    @ mlstm _mlstm.py _initial_state

    without a state the stabiliser starts at minus infinity
    - np.zeros((B, N))
    + np.full((B, N), -np.inf)

    @ mlstm _gates.py exp_difference

    NaN where the memory is empty
    - np.subtract(x, y, out=difference, where=~np.isneginf(x))
    + np.subtract(x, y, out=difference)

    @ mlstm _mlstm.py _write

    the normaliser's memory does not decay
    - decay[..., None] * n
    + n

    ~ memory rounded to bfloat16 at each step
    - n = decay[..., None] * n + gain[..., None] * k
    + ...
    + C, n = ((2**45 + 1) * x - ((2**45 + 1) * x - x) for x in (C, n))

    ~ memory rounded to float16 at each step
    - n = decay[..., None] * n + gain[..., None] * k
    + ...
    + C, n = (x.astype(np.float16).astype(np.float64) for x in (C, n))

    ~ normaliser's memory n rounded to bfloat16 at each step
    - n = decay[..., None] * n + gain[..., None] * k
    + ...
    + n = (2**45 + 1) * n - ((2**45 + 1) * n - n)

    ~ normaliser's memory n rounded to float16 at each step
    - n = decay[..., None] * n + gain[..., None] * k
    + ...
    + n = n.astype(np.float16).astype(np.float64)

    @ mlstm _mlstm.py _read

    1/√K left out
    - q = q / np.sqrt(q.shape[-1])

    1/√K twice
    - np.sqrt(q.shape[-1])
    + q.shape[-1]

    1/√V for 1/√K
    - q.shape
    + C.shape

    absolute value of the normaliser forgotten
    - np.abs(nu)
    + nu

    normaliser's floor left out
    - np.maximum(np.abs(nu), normaliser_floor(m))
    + np.abs(nu)

    floor in place of a normaliser that is NaN
    - np.maximum(np.abs(nu), normaliser_floor(m))
    + np.fmax(np.abs(nu), normaliser_floor(m))

    floor added to the normaliser
    - np.maximum(np.abs(nu), normaliser_floor(m))
    + np.abs(nu) + normaliser_floor(m)

    @ mlstm _mlstm.py normaliser_floor

    floor without the limit at m = 64
    - np.minimum(m, LARGEST_M)
    + m

    floor of 1 in the normaliser, max(|n·q̂|, 1), whatever the stabiliser
    - np.exp(-np.minimum(m, LARGEST_M))
    + np.ones_like(m)

    @ mlstm _mlstm.py _read

    eps accepted and ignored
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.maximum(np.abs(nu), normaliser_floor(m))

    eps added to the floor alone
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.maximum(np.abs(nu), normaliser_floor(m) + eps)

    head dim beyond a block of 16 left out of the normaliser
    - np.einsum("...k,...k->...", n, q)
    + np.einsum("...k,...k->...", n[..., :16], q[..., :16])

    @ mlstm _mlstm.py mlstm_recurrent

    a step does not read what it wrote
    - state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
    - h[:, t] = _read(q[:, t], state, eps)
    + h[:, t] = _read(q[:, t], state, eps)
    + state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)

    wrong only above 512 steps
    - h[:, t] = _read(q[:, t], state, eps)
    + ...
    + h[:, t] *= 1.0 if t < 512 else 1.001

    a tenth of all calls is off by 1e-6
    - return (h, state)
    + calls = _read.__dict__.setdefault("calls", np.random.default_rng(0))
    + return (h * (1 + 1e-06 * (calls.random() < 0.1)), state)

    forget gate with a bias of its own
    - log_sigmoid(f)
    + log_sigmoid(f + 1)

    forget gate taken to be a logarithm already, f for log σ(f)
    - log_sigmoid(f)
    + f

    σ(f) as the log of the forget gate, not log σ(f)
    - log_sigmoid(f)
    + sigmoid(f)

    ~ log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0
    - log_sigmoid(f)
    + np.log(1 / (1 + np.exp(-f.astype(np.float32)))).astype(np.float64)

    ~ log σ(f) rounded to bfloat16
    - a = log_sigmoid(f)
    + ...
    + c = (2**45 + 1) * np.maximum(a, -1e30)
    + a = c - (c - a)

    ~ log σ(f) rounded to float16
    - log_sigmoid(f)
    + log_sigmoid(f).astype(np.float16).astype(np.float64)

    ~ log decays as differences of cumulative sums
    - a = log_sigmoid(f)
    + sums = np.cumsum(log_sigmoid(f), axis=1).astype(np.float32).astype(np.float64)
    + a = np.concatenate([sums[:, :1], sums[:, 1:] - sums[:, :-1]], axis=1) + (sums - sums)

    σ(i) as the input gate, not exp(i)
    - i[:, t]
    + log_sigmoid(i[:, t])

    a step's own write is decayed by its forget gate
    - i[:, t]
    + i[:, t] + a[:, t]

    gates capped smoothly at ±15
    - a = log_sigmoid(f)
    + i, f = (15 * np.tanh(x / 15) for x in (i, f))
    + ...

    input and forget gate swapped
    - a = log_sigmoid(f)
    + i, f = f, i
    + ...

    input gates held below 50
    - state = _initial_state((q, k, v, i, f), initial_state)
    + ...
    + i = np.minimum(i, 50.0)

    @ mlstm _mlstm.py mlstm.whole

    initial state ignored
    - options = {} if chunk_size is None else {"chunk_size": chunk_size}
    + ...
    + state = _initial_state(arrays, None)

    initial m ignored, 0 in its place
    - options = {} if chunk_size is None else {"chunk_size": chunk_size}
    + ...
    + state = state._replace(m=np.zeros(state.m.shape))

    C transposed in the initial and the final state
    - h, last = form(*arrays, initial_state=state, eps=eps, **options)
    + turned = state.C.shape[-1] == state.C.shape[-2]
    + state = state._replace(C=state.C.mT) if turned else state
    + ...
    + last = last._replace(C=last.C.mT) if turned else last

    @ mlstm _mlstm.py mlstm

    float32 gates rounded to the dtype of the values
    - float64(x)
    + float64(x.astype(v.dtype))

    answers in float32
    - if cu_seqlens is None:
    -     (h,), last = whole(*arrays, state=state)
    - else:
    -     (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
    + ...
    + h = h.astype(np.float32)

    input overwritten
    - if cu_seqlens is None:
    -     (h,), last = whole(*arrays, state=state)
    - else:
    -     (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
    + ...
    + q /= np.sqrt(q.shape[-1]).astype(q.dtype)

    @ mlstm _mlstm.py _initial_state

    without a step the final state is the initial one's memory
    - float64(part)
    + np.asarray(part, np.float64)

    @ mlstm _mlstm.py _each_sequence

    an empty packed sequence takes its neighbour's state
    - of_b = {
    -     name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()
    - }
    + at = b - 1 if b and start == end else b
    + of_b = {
    +     name: MLSTMState(*(part[at : at + 1] for part in state)) for name, state in states.items()
    + }

    memory is not reset between packed sequences
    - of_b = {
    -     name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()
    - }
    + ...
    + if b and "dlast" not in states:
    +     of_b["state"] = results[-1][1]

    @ mlstm _mlstm.py mlstm

    initial state ignored where sequences are packed
    - _each_sequence(whole, arrays, cu_seqlens, state=state)
    + _each_sequence(whole, arrays, cu_seqlens, state=_initial_state(arrays, None, cu_seqlens))

    @ mlstm _gates.py stabilised_decay

    the rounding of a huge stabiliser makes a memory grow
    - np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))
    + decay

    a NaN makes the memories of other sequences grow where their stabiliser is huge
    - np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))
    + np.minimum(decay, 0.0) if np.max(np.abs(m_new), initial=0.0) >= LARGEST_EXACT else decay
""")
