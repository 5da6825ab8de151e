"""Faults of the GRU's gradient: its clipping, its paths, its groups."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="gru",
        name="clipped after dy is added",
        module="_gru.py",
        function="gru_backward",
        replace="np.clip(dh, -bound, bound) + dy[t]",
        by="np.clip(dh + dy[t], -bound, bound)",
    ),
    Mutant(
        op="gru",
        name="final state's cotangent is not clipped",
        module="_gru.py",
        function="gru_backward",
        replace="np.clip(dh, -bound, bound)",
        by="np.clip(dh, -bound, bound) if position + 1 < len(steps) else dh",
    ),
    Mutant(
        op="gru",
        name="gradient's norm is clipped, not its elements",
        module="_gru.py",
        function="gru_backward",
        replace="np.clip(dh, -bound, bound)",
        by="dh * np.minimum(1.0, bound / np.maximum(np.linalg.norm(dh), 1e-300))",
    ),
    Mutant(
        op="gru",
        name="clipping accepted and ignored",
        module="_gru.py",
        function="gru_backward",
        replace="np.inf if gradient_clipping is None else abs(gradient_clipping)",
        by="np.inf",
    ),
    Mutant(
        op="gru",
        name="negative clipping clips to one value",
        module="_gru.py",
        function="gru_backward",
        replace="abs(gradient_clipping)",
        by="gradient_clipping",
    ),
    Mutant(
        op="gru",
        name="gradient of the initial state clipped",
        module="_gru.py",
        function="gru_backward",
        replace="dh0[b] = dh",
        by="dh0[b] = np.clip(dh, -bound, bound)",
    ),
    Mutant(
        op="gru",
        name="gradient of an empty packed sequence's initial state zero",
        module="_gru.py",
        function="gru_backward",
        replace="dh0[b] = dh",
        by="dh0[b] = dh if steps else 0",
    ),
    Mutant(
        op="gru",
        name="cotangent of the final state dropped",
        module="_gru.py",
        function="gru_backward",
        replace="np.zeros(h0.shape) if dstate is None else float64(dstate)",
        by="np.zeros(h0.shape)",
    ),
    Mutant(
        op="gru",
        name="gradient passes the reset gate unscaled",
        module="_gru.py",
        function="gru_backward",
        replace="drh * r",
        by="drh",
    ),
    Mutant(
        op="gru",
        name="gradient through the reset gate's weight dropped",
        module="_gru.py",
        function="gru_backward",
        replace="dh * f + drh * r + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)",
        by="dh * f + drh * r + _times(dxf[t], Wf.mT)",
    ),
    Mutant(
        op="gru",
        name="gradient through the forget gate's weight not transposed",
        module="_gru.py",
        function="gru_backward",
        replace="Wf.mT",
        by="Wf",
    ),
    Mutant(
        op="gru",
        name="gradient past the forget gate dropped",
        module="_gru.py",
        function="gru_backward",
        replace="dh * f + drh * r",
        by="drh * r",
    ),
    Mutant(
        op="gru",
        name="forget gate's gradient with the other sign",
        module="_gru.py",
        function="gru_backward",
        replace="h - z",
        by="z - h",
    ),
    Mutant(
        op="gru",
        name="derivative of the sigmoid for that of the hyperbolic tangent",
        module="_gru.py",
        function="gru_backward",
        replace="dh * (1 - f) * (1 - z * z)",
        by="dh * (1 - f) * z * (1 - z)",
    ),
    Mutant(
        op="gru",
        name="weight's gradient without the reset gate",
        module="_gru.py",
        function="gru_backward",
        replace="r * h",
        by="h",
    ),
    Mutant(
        op="gru",
        name="weight's gradient takes the state after the step",
        module="_gru.py",
        function="gru_backward",
        replace="h[:, :, None] * dxf[t][:, None, :]",
        by="y[t][:, :, None] * dxf[t][:, None, :]",
    ),
    Mutant(
        op="gru",
        name="weight's gradient is the last sequence's",
        module="_gru.py",
        function="gru_backward",
        replace="dh = dh0[b]",
        by="""
            dh = dh0[b]
            dWr[...] = 0
        """,
    ),
    Mutant(
        op="gru",
        name="weight's gradient is summed in an order that changes",
        module="_gru.py",
        function="gru_backward",
        replace="""
            for b, steps in _sequences(call, cu_seqlens):
                dh = dh0[b]
                for position, t in reversed(list(enumerate(steps))):
                    h = y[steps[position - 1]] if position else h0[b]
                    r, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    dh = np.clip(dh, -bound, bound) + dy[t]
                    dx[t] = dh * (1 - f) * (1 - z * z)
                    dxf[t] = dh * (h - z) * f * (1 - f)
                    drh = _times(dx[t], W.mT)
                    dxr[t] = drh * h * r * (1 - r)
                    dh = dh * f + drh * r + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
                    dW += (r * h)[:, :, None] * dx[t][:, None, :]
                    dWf += h[:, :, None] * dxf[t][:, None, :]
                    dWr += h[:, :, None] * dxr[t][:, None, :]
                dh0[b] = dh
        """,
        by="""
            order = _times.__dict__.setdefault("order", np.random.default_rng(0)).permutation(call["B"])
            sequences = _sequences(call, cu_seqlens)
            for b, steps in (sequences[at] for at in order):
                dh = dh0[b]
                for position, t in reversed(list(enumerate(steps))):
                    h = y[steps[position - 1]] if position else h0[b]
                    r, f, z = _gates(h, x[t], W, xf[t], Wf, xr[t], Wr)
                    dh = np.clip(dh, -bound, bound) + dy[t]
                    dx[t] = dh * (1 - f) * (1 - z * z)
                    dxf[t] = dh * (h - z) * f * (1 - f)
                    drh = _times(dx[t], W.mT)
                    dxr[t] = drh * h * r * (1 - r)
                    dh = dh * f + drh * r + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)
                    dW += (r * h)[:, :, None] * dx[t][:, None, :]
                    dWf += h[:, :, None] * dxf[t][:, None, :]
                    dWr += h[:, :, None] * dxr[t][:, None, :]
                dh0[b] = dh
        """,
    ),
    Mutant(
        op="gru",
        name="gradient of another head of the group",
        module="_gru.py",
        function="_reduce",
        replace="""
            gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum(
                axis=axis + 1
            )
        """,
        by="gradient.reshape(*shape[:axis], shape[axis] // heads, heads, *shape[axis + 1 :]).sum(axis=axis)",
    ),
    Mutant(
        op="gru",
        name="gradient is the mean of its group",
        module="_gru.py",
        function="_reduce",
        replace="gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum",
        by="gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).mean",
    ),
    Mutant(
        op="gru",
        name="gradient of a weight in float32",
        module="_gru.py",
        function="gru_backward",
        replace='_reduce(dW, call["Nw"], 0)',
        by='_reduce(dW, call["Nw"], 0).astype(np.float32)',
    ),
    Mutant(
        op="gru",
        name="gradient of the initial state written into the cotangent",
        module="_gru.py",
        function="gru_backward",
        replace="float64(dstate)",
        by="np.asarray(dstate, np.float64)",
    ),
)
