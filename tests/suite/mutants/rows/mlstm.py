"""Faults of the mLSTM's value, step by step: its memory, its normaliser, its packing."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="mlstm",
        name="the stabiliser is not the maximum",
        module="_mlstm.py",
        function="_write",
        replace="np.maximum(a + m, i)",
        by="a + m",
    ),
    Mutant(
        op="mlstm",
        name="the stabiliser does not decay",
        module="_mlstm.py",
        function="_write",
        replace="np.maximum(a + m, i)",
        by="np.maximum(m, i)",
    ),
    Mutant(
        op="mlstm",
        name="the decay from a sum rounded at the size of the gates",
        module="_mlstm.py",
        function="_write",
        replace="np.exp(stabilised_decay(a, m, m_new))",
        by="exp_difference(a + m, m_new)",
    ),
    Mutant(
        op="mlstm",
        name="one stabiliser for all heads",
        module="_mlstm.py",
        function="_write",
        replace="np.maximum(a + m, i)",
        by="np.broadcast_to(np.maximum(a + m, i).max(axis=-1, keepdims=True), m.shape)",
    ),
    Mutant(
        op="mlstm",
        name="without a state the stabiliser starts at minus infinity",
        module="_mlstm.py",
        function="_initial_state",
        replace="np.zeros((B, N))",
        by="np.full((B, N), -np.inf)",
    ),
    Mutant(
        op="mlstm",
        name="NaN where the memory is empty",
        module="_gates.py",
        function="exp_difference",
        replace="np.subtract(x, y, out=difference, where=~np.isneginf(x))",
        by="np.subtract(x, y, out=difference)",
    ),
    Mutant(
        op="mlstm",
        name="the write is decayed by its own gate",
        module="_mlstm.py",
        function="_write",
        replace="exp_difference(i, m_new)",
        by="exp_difference(i + a, m_new)",
    ),
    Mutant(
        op="mlstm",
        name="the normaliser's memory does not decay",
        module="_mlstm.py",
        function="_write",
        replace="decay[..., None] * n",
        by="n",
    ),
    Mutant(
        op="mlstm",
        name="memory rounded to bfloat16 at each step",
        module="_mlstm.py",
        function="_write",
        replace="n = decay[..., None] * n + gain[..., None] * k",
        by="""
            n = decay[..., None] * n + gain[..., None] * k
            C = (C.astype(np.float32).view(np.uint32) & 4294901760).view(np.float32).astype(np.float64)
        """,
    ),
    Mutant(
        op="mlstm",
        name="1/sqrt(K) left out",
        module="_mlstm.py",
        function="_read",
        replace="q = q / np.sqrt(q.shape[-1])",
        by="",
    ),
    Mutant(
        op="mlstm",
        name="1/sqrt(V) for 1/sqrt(K)",
        module="_mlstm.py",
        function="_read",
        replace="q.shape",
        by="C.shape",
    ),
    Mutant(
        op="mlstm",
        name="absolute value of the normaliser forgotten",
        module="_mlstm.py",
        function="_read",
        replace="np.abs(nu)",
        by="nu",
    ),
    Mutant(
        op="mlstm",
        name="floor added to the normaliser",
        module="_mlstm.py",
        function="_read",
        replace="np.maximum(np.abs(nu), normaliser_floor(m))",
        by="np.abs(nu) + normaliser_floor(m)",
    ),
    Mutant(
        op="mlstm",
        name="floor without the limit at m = 64",
        module="_mlstm.py",
        function="normaliser_floor",
        replace="np.minimum(m, LARGEST_M)",
        by="m",
    ),
    Mutant(
        op="mlstm",
        name="floor of 1 whatever the stabiliser",
        module="_mlstm.py",
        function="normaliser_floor",
        replace="np.exp(-np.minimum(m, LARGEST_M))",
        by="np.ones_like(m)",
    ),
    Mutant(
        op="mlstm",
        name="eps accepted and ignored",
        module="_mlstm.py",
        function="_read",
        replace="np.maximum(np.abs(nu), normaliser_floor(m)) + eps",
        by="np.maximum(np.abs(nu), normaliser_floor(m))",
    ),
    Mutant(
        op="mlstm",
        name="eps added to the floor alone",
        module="_mlstm.py",
        function="_read",
        replace="np.maximum(np.abs(nu), normaliser_floor(m)) + eps",
        by="np.maximum(np.abs(nu), normaliser_floor(m) + eps)",
    ),
    Mutant(
        op="mlstm",
        name="head dim beyond a block of 16 left out of the normaliser",
        module="_mlstm.py",
        function="_read",
        replace='np.einsum("...k,...k->...", n, q)',
        by='np.einsum("...k,...k->...", n[..., :16], q[..., :16])',
    ),
    Mutant(
        op="mlstm",
        name="a step does not read what it wrote",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="""
            state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
            h[:, t] = _read(q[:, t], state, eps)
        """,
        by="""
            h[:, t] = _read(q[:, t], state, eps)
            state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
        """,
    ),
    Mutant(
        op="mlstm",
        name="wrong only above 512 steps",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="h[:, t] = _read(q[:, t], state, eps)",
        by="""
            h[:, t] = _read(q[:, t], state, eps)
            h[:, t] *= 1.0 if t < 512 else 1.001
        """,
    ),
    Mutant(
        op="mlstm",
        name="a tenth of all calls is off by 1e-6",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="return (h, state)",
        by="""
            calls = _read.__dict__.setdefault("calls", np.random.default_rng(0))
            return (h * (1 + 1e-06 * (calls.random() < 0.1)), state)
        """,
    ),
    Mutant(
        op="mlstm",
        name="forget gate with a bias of its own",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="log_sigmoid(f)",
        by="log_sigmoid(f + 1)",
    ),
    Mutant(
        op="mlstm",
        name="exponential forget gate",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="log_sigmoid(f)",
        by="np.minimum(f, 0.0)",
    ),
    Mutant(
        op="mlstm",
        name="forget gates held above -30",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="log_sigmoid(f)",
        by="log_sigmoid(np.maximum(f, -30.0))",
    ),
    Mutant(
        op="mlstm",
        name="input gates held below 50",
        module="_mlstm.py",
        function="mlstm_recurrent",
        replace="state = _initial_state((q, k, v, i, f), initial_state)",
        by="""
            state = _initial_state((q, k, v, i, f), initial_state)
            i = np.minimum(i, 50.0)
        """,
    ),
    Mutant(
        op="mlstm",
        name="float32 gates rounded to the dtype of the values",
        module="_mlstm.py",
        function="mlstm",
        replace="float64(x)",
        by="float64(x.astype(v.dtype))",
    ),
    Mutant(
        op="mlstm",
        name="answers in float32",
        module="_mlstm.py",
        function="mlstm",
        replace="""
            if cu_seqlens is None:
                (h,), last = whole(*arrays, state=state)
            else:
                (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
        """,
        by="""
            if cu_seqlens is None:
                (h,), last = whole(*arrays, state=state)
            else:
                (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
            h = h.astype(np.float32)
        """,
    ),
    Mutant(
        op="mlstm",
        name="input overwritten",
        module="_mlstm.py",
        function="mlstm",
        replace="""
            if cu_seqlens is None:
                (h,), last = whole(*arrays, state=state)
            else:
                (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
        """,
        by="""
            if cu_seqlens is None:
                (h,), last = whole(*arrays, state=state)
            else:
                (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
            q /= np.sqrt(q.shape[-1]).astype(q.dtype)
        """,
    ),
    Mutant(
        op="mlstm",
        name="without a step the final state is the initial one's memory",
        module="_mlstm.py",
        function="_initial_state",
        replace="float64(part)",
        by="np.asarray(part, np.float64)",
    ),
    Mutant(
        op="mlstm",
        name="an empty packed sequence takes its neighbour's state",
        module="_mlstm.py",
        function="_each_sequence",
        replace="""
            of_b = {
                name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()
            }
        """,
        by="""
            at = b - 1 if b and start == end else b
            of_b = {
                name: MLSTMState(*(part[at : at + 1] for part in state)) for name, state in states.items()
            }
        """,
    ),
    Mutant(
        op="mlstm",
        name="memory is not reset between packed sequences",
        module="_mlstm.py",
        function="_each_sequence",
        replace="""
            of_b = {
                name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()
            }
        """,
        by="""
            of_b = {
                name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()
            }
            if b and "dlast" not in states:
                of_b["state"] = results[-1][1]
        """,
    ),
    Mutant(
        op="mlstm",
        name="initial state ignored where sequences are packed",
        module="_mlstm.py",
        function="mlstm",
        replace="_each_sequence(whole, arrays, cu_seqlens, state=state)",
        by="_each_sequence(whole, arrays, cu_seqlens, state=_initial_state(arrays, None, cu_seqlens))",
    ),
    Mutant(
        op="mlstm",
        name="the rounding of a huge stabiliser makes a memory grow",
        module="_gates.py",
        function="stabilised_decay",
        replace="np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))",
        by="decay",
    ),
    Mutant(
        op="mlstm",
        name="a NaN makes the memories of other sequences grow where their stabiliser is huge",
        module="_gates.py",
        function="stabilised_decay",
        replace="np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))",
        by="""
            np.minimum(decay, 0.0) if np.max(np.abs(m_new), initial=0.0) >= LARGEST_EXACT else decay
        """,
    ),
)
