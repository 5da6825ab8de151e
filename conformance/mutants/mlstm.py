"""Faults of the mLSTM's value, step by step: its memory, its normaliser, its packing."""

from conformance.mutants._mutant import Mutant

_NORMALISED = "return numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]"
_WRITE_THEN_READ = (
    "        state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)\n        h[:, t] = _read(q[:, t], state, eps)\n"
)
_SEQUENCE_STATE = (
    "        of_b = {name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()}\n"
)
_GATES = "    a = log_sigmoid(f)\n    h = np.empty(v.shape)\n    for t in range(q.shape[1]):\n"
_BF16 = "(C.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)"

ROWS = (
    Mutant(
        "mlstm",
        "the stabiliser is not the maximum",
        "_mlstm.py",
        "m_new = np.maximum(a + m, i)",
        "m_new = a + m",
    ),
    Mutant(
        "mlstm",
        "the stabiliser does not decay",
        "_mlstm.py",
        "m_new = np.maximum(a + m, i)",
        "m_new = np.maximum(m, i)",
    ),
    Mutant(
        "mlstm",
        "one stabiliser for all heads",
        "_mlstm.py",
        "m_new = np.maximum(a + m, i)",
        "m_new = np.broadcast_to(np.maximum(a + m, i).max(axis=-1, keepdims=True), m.shape)",
    ),
    Mutant(
        "mlstm",
        "without a state the stabiliser starts at minus infinity",
        "_mlstm.py",
        "np.zeros((B, N, K)), np.zeros((B, N)))",
        "np.zeros((B, N, K)), np.full((B, N), -np.inf))",
    ),
    Mutant(
        "mlstm",
        "NaN where the memory is empty",
        "_gates.py",
        "np.subtract(x, y, out=difference, where=~np.isneginf(x))",
        "np.subtract(x, y, out=difference)",
    ),
    Mutant(
        "mlstm",
        "the write is decayed by its own gate",
        "_mlstm.py",
        "gain = exp_difference(i, m_new)",
        "gain = exp_difference(i + a, m_new)",
    ),
    Mutant(
        "mlstm",
        "the normaliser's memory does not decay",
        "_mlstm.py",
        "    n = decay[..., None] * n + gain[..., None] * k\n",
        "    n = n + gain[..., None] * k\n",
    ),
    Mutant(
        "mlstm",
        "memory rounded to bfloat16 at each step",
        "_mlstm.py",
        "    return MLSTMState(C, n, m_new)",
        f"    C = {_BF16}\n    return MLSTMState(C, n, m_new)",
    ),
    Mutant(
        "mlstm",
        "1/sqrt(K) left out",
        "_mlstm.py",
        "    q = q / np.sqrt(q.shape[-1])\n    numerator = np.einsum",
        "    numerator = np.einsum",
    ),
    Mutant(
        "mlstm",
        "1/sqrt(V) for 1/sqrt(K)",
        "_mlstm.py",
        "    q = q / np.sqrt(q.shape[-1])\n    numerator = np.einsum",
        "    q = q / np.sqrt(C.shape[-1])\n    numerator = np.einsum",
    ),
    Mutant(
        "mlstm",
        "absolute value of the normaliser forgotten",
        "_mlstm.py",
        _NORMALISED,
        "return numerator / (np.maximum(nu, normaliser_floor(m)) + eps)[..., None]",
    ),
    Mutant(
        "mlstm",
        "floor added to the normaliser",
        "_mlstm.py",
        _NORMALISED,
        "return numerator / (np.abs(nu) + normaliser_floor(m) + eps)[..., None]",
    ),
    Mutant(
        "mlstm",
        "floor without the limit at m = 64",
        "_mlstm.py",
        "np.exp(-np.minimum(m, LARGEST_M))",
        "np.exp(-m)",
    ),
    Mutant(
        "mlstm",
        "floor of 1 whatever the stabiliser",
        "_mlstm.py",
        "np.exp(-np.minimum(m, LARGEST_M))",
        "np.ones_like(m)",
    ),
    Mutant(
        "mlstm",
        "eps accepted and ignored",
        "_mlstm.py",
        _NORMALISED,
        "return numerator / np.maximum(np.abs(nu), normaliser_floor(m))[..., None]",
    ),
    Mutant(
        "mlstm",
        "eps added to the floor alone",
        "_mlstm.py",
        _NORMALISED,
        "return numerator / np.maximum(np.abs(nu), normaliser_floor(m) + eps)[..., None]",
    ),
    Mutant(
        "mlstm",
        "head dim beyond a block of 16 left out of the normaliser",
        "_mlstm.py",
        '    nu = np.einsum("...k,...k->...", n, q)\n    return',
        '    nu = np.einsum("...k,...k->...", n[..., :16], q[..., :16])\n    return',
    ),
    Mutant(
        "mlstm",
        "a step does not read what it wrote",
        "_mlstm.py",
        _WRITE_THEN_READ,
        "        h[:, t] = _read(q[:, t], state, eps)\n"
        "        state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)\n",
    ),
    Mutant(
        "mlstm",
        "wrong only above 512 steps",
        "_mlstm.py",
        _WRITE_THEN_READ,
        _WRITE_THEN_READ + "        h[:, t] *= 1.0 if t < 512 else 1.001\n",
    ),
    Mutant(
        "mlstm",
        "a tenth of all calls is off by 1e-6",
        "_mlstm.py",
        _WRITE_THEN_READ + "    return h, state\n",
        _WRITE_THEN_READ + "    calls = _read.__dict__.setdefault('calls', np.random.default_rng(0))\n"
        "    return h * (1 + 1e-6 * (calls.random() < 0.1)), state\n",
    ),
    Mutant(
        "mlstm",
        "forget gate with a bias of its own",
        "_mlstm.py",
        _GATES,
        _GATES.replace("log_sigmoid(f)", "log_sigmoid(f + 1)"),
    ),
    Mutant(
        "mlstm",
        "exponential forget gate",
        "_mlstm.py",
        _GATES,
        _GATES.replace("log_sigmoid(f)", "np.minimum(f, 0.0)"),
    ),
    Mutant(
        "mlstm",
        "forget gates held above -30",
        "_mlstm.py",
        _GATES,
        _GATES.replace("log_sigmoid(f)", "log_sigmoid(np.maximum(f, -30.0))"),
    ),
    Mutant(
        "mlstm",
        "input gates held below 50",
        "_mlstm.py",
        _GATES,
        "    i = np.minimum(i, 50.0)\n" + _GATES,
    ),
    Mutant(
        "mlstm",
        "float32 gates rounded to the dtype of the values",
        "_mlstm.py",
        "    arrays = [float64(x) for x in (q, k, v, i, f)]\n",
        "    arrays = [float64(x.astype(v.dtype)) for x in (q, k, v, i, f)]\n",
    ),
    Mutant(
        "mlstm",
        "answers in float32",
        "_mlstm.py",
        "    return (h, last) if return_state else h\n",
        "    h = h.astype(np.float32)\n    return (h, last) if return_state else h\n",
    ),
    Mutant(
        "mlstm",
        "input overwritten",
        "_mlstm.py",
        "    return (h, last) if return_state else h\n",
        "    q /= np.sqrt(q.shape[-1]).astype(q.dtype)\n    return (h, last) if return_state else h\n",
    ),
    Mutant(
        "mlstm",
        "without a step the final state is the initial one's memory",
        "_mlstm.py",
        "    if state is not None:\n        return MLSTMState(*(float64(part) for part in state))\n",
        "    if state is not None:\n        return MLSTMState(*(np.asarray(part, np.float64) for part in state))\n",
    ),
    Mutant(
        "mlstm",
        "an empty packed sequence takes its neighbour's state",
        "_mlstm.py",
        _SEQUENCE_STATE,
        "        at = b - 1 if b and start == end else b\n" + _SEQUENCE_STATE.replace("b : b + 1", "at : at + 1"),
    ),
    Mutant(
        "mlstm",
        "memory is not reset between packed sequences",
        "_mlstm.py",
        _SEQUENCE_STATE,
        _SEQUENCE_STATE + '        if b and "dlast" not in states:\n            of_b["state"] = results[-1][1]\n',
    ),
    Mutant(
        "mlstm",
        "initial state ignored where sequences are packed",
        "_mlstm.py",
        "(h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)",
        "(h,), last = _each_sequence(whole, arrays, cu_seqlens, state=_initial_state(arrays, None, cu_seqlens))",
    ),
)
