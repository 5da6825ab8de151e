"""Faults of the GRU's value: its gates, its heads, its packing."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="gru",
        name="reset gate after the product",
        module="_gru.py",
        function="_gates",
        replace="_times(r * h, W)",
        by="r * _times(h, W)",
    ),
    Mutant(
        op="gru",
        name="reset gate on the input too",
        module="_gru.py",
        function="_gates",
        replace="_times(r * h, W) + x",
        by="_times(r * h, W) + r * x",
    ),
    Mutant(
        op="gru",
        name="forget gate and its complement swapped",
        module="_gru.py",
        function="gru",
        replace="f * h + (1 - f) * z",
        by="(1 - f) * h + f * z",
    ),
    Mutant(
        op="gru",
        name="forget gate of 1 does not keep the state bit by bit",
        module="_gru.py",
        function="gru",
        replace="f * h + (1 - f) * z",
        by="z + f * (h - z)",
    ),
    Mutant(
        op="gru",
        name="forget gate with a bias of its own",
        module="_gru.py",
        function="_gates",
        replace="_times(h, Wf) + xf",
        by="_times(h, Wf) + xf + 1",
    ),
    Mutant(
        op="gru",
        name="reset gate reads the forget gate's input",
        module="_gru.py",
        function="_gates",
        replace="_times(h, Wr) + xr",
        by="_times(h, Wr) + xf",
    ),
    Mutant(
        op="gru",
        name="weights transposed",
        module="_gru.py",
        function="_times",
        replace='np.einsum("ni,nij->nj", h, W)',
        by='np.einsum("ni,nji->nj", h, W)',
    ),
    Mutant(
        op="gru",
        name="gates held between sigmoids of -8 and 8",
        module="_gru.py",
        function="_gates",
        replace="_times(h, Wf) + xf",
        by="np.clip(_times(h, Wf) + xf, -8, 8)",
    ),
    Mutant(
        op="gru",
        name="grouped head reads n modulo its heads",
        module="_gru.py",
        function="_expand",
        replace='np.repeat(float64(array), call["N"] // array.shape[axis], axis=axis)',
        by='np.concatenate([float64(array)] * (call["N"] // array.shape[axis]), axis=axis)',
    ),
    Mutant(
        op="gru",
        name="weights of two gates swapped where heads are grouped",
        module="_gru.py",
        function="gru",
        replace="x, W, xf, Wf, xr, Wr = _expand(call, arrays)",
        by="""
            x, W, xf, Wf, xr, Wr = _expand(call, arrays)
            if call["Nwf"] < call["N"]:
                Wf, Wr = (Wr, Wf)
        """,
    ),
    Mutant(
        op="gru",
        name="state rounded to bfloat16 at each step",
        module="_gru.py",
        function="gru",
        replace="h = f * h + (1 - f) * z",
        by="""
            h = f * h + (1 - f) * z
            h = (h.astype(np.float32).view(np.uint32) & 4294901760).view(np.float32).astype(np.float64)
        """,
    ),
    Mutant(
        op="gru",
        name="state handed on in float16 every 512 steps",
        module="_gru.py",
        function="gru",
        replace="""
            for t in steps:
                _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                h = f * h + (1 - f) * z
                y[t] = h
        """,
        by="""
            for number, t in enumerate(steps):
                if number and number % 512 == 0:
                    h = h.astype(np.float16).astype(np.float64)
                _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                h = f * h + (1 - f) * z
                y[t] = h
        """,
    ),
    Mutant(
        op="gru",
        name="a tenth of all calls is off by 1e-6",
        module="_gru.py",
        function="gru",
        replace="""
            for b, steps in _sequences(call, cu_seqlens):
                h = h0[b]
                for t in steps:
                    _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    h = f * h + (1 - f) * z
                    y[t] = h
                last[b] = h
        """,
        by="""
            for b, steps in _sequences(call, cu_seqlens):
                h = h0[b]
                for t in steps:
                    _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    h = f * h + (1 - f) * z
                    y[t] = h
                last[b] = h
            calls = _times.__dict__.setdefault("calls", np.random.default_rng(0))
            y *= 1 + 1e-06 * (calls.random() < 0.1)
        """,
    ),
    Mutant(
        op="gru",
        name="final state shares the output's memory",
        module="_gru.py",
        function="gru",
        replace="""
            for b, steps in _sequences(call, cu_seqlens):
                h = h0[b]
                for t in steps:
                    _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    h = f * h + (1 - f) * z
                    y[t] = h
                last[b] = h
        """,
        by="""
            for b, steps in _sequences(call, cu_seqlens):
                h = h0[b]
                for t in steps:
                    _, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    h = f * h + (1 - f) * z
                    y[t] = h
                last[b] = h
            if cu_seqlens is None and call["S"]:
                last = y[:, -1]
        """,
    ),
    Mutant(
        op="gru",
        name="an empty packed sequence returns zeros",
        module="_gru.py",
        function="gru",
        replace="last[b] = h",
        by="last[b] = h if steps else 0",
    ),
    Mutant(
        op="gru",
        name="an empty packed sequence returns its neighbour's last token",
        module="_gru.py",
        function="gru",
        replace="last[b] = h",
        by="last[b] = h if steps or not b else last[b - 1]",
    ),
    Mutant(
        op="gru",
        name="state is not reset between packed sequences",
        module="_gru.py",
        function="gru",
        replace="h0[b]",
        by="h0[b] if cu_seqlens is None or not b else last[b - 1]",
    ),
    Mutant(
        op="gru",
        name="initial state ignored where sequences are packed",
        module="_gru.py",
        function="gru",
        replace="input_state is None",
        by="input_state is None or cu_seqlens is not None",
    ),
    Mutant(
        op="gru",
        name="input overwritten",
        module="_gru.py",
        function="gru",
        replace="""
            h0 = (
                np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)
            )
        """,
        by="""
            h0 = (
                np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)
            )
            input *= 1 + 0.001
        """,
    ),
    Mutant(
        op="gru",
        name="answers in float32",
        module="_gru.py",
        function="gru",
        replace="return (y, last)",
        by="return (y.astype(np.float32), last)",
    ),
)
