"""Faults to put into a copy of the reference: rows of (operation, what is wrong, file, old text, new text).

Each is one that real implementations have had (the first list is that of public mLSTM and GRU kernels). The text must
stand in the file exactly once, so that a row cannot rot unseen.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A change that makes an implementation wrong.

    Attributes:
        op: the operation whose laws ought to break.
        name: what is wrong.
        file: the module of `reference`.
        old, new: the text that is replaced.
    """

    op: str
    name: str
    file: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        path = package / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.name}: the text stands {text.count(self.old)} times in {self.file}"
        path.write_text(text.replace(self.old, self.new))


FAULTS = (
    Fault(
        "mlstm",
        "normaliser treated as a constant in the gradient",
        "_mlstm.py",
        "np.where(np.abs(nu) > floor, np.sign(nu), 0.0)",
        "0.0",
    ),
    Fault(
        "mlstm",
        "1/sqrt(K) twice in the gradient of q",
        "_mlstm.py",
        "return (dq / np.sqrt(q.shape[-1]), dk",
        "return (dq / q.shape[-1], dk",
    ),
    Fault(
        "mlstm",
        "cotangents of the final state dropped",
        "_mlstm.py",
        "if dstate is None else map(float64, dstate)",
        "if True else map(float64, dstate)",
    ),
    Fault(
        "mlstm",
        "cotangent of the final stabiliser dropped",
        "_mlstm.py",
        "g = dlast.m - _dot(states[S], dlast)",
        "g = 0 * dlast.m",
    ),
    Fault(
        "mlstm",
        "gradient of the initial stabiliser zero",
        "_mlstm.py",
        "return (dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f)), MLSTMState(dC, dn, dm)",
        "return (dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f)), MLSTMState(dC, dn, 0 * dm)",
    ),
    Fault(
        "mlstm",
        "floor without the limit at m = 64",
        "_mlstm.py",
        "np.exp(-np.minimum(m, LARGEST_M))",
        "np.exp(-m)",
    ),
    Fault(
        "mlstm",
        "the stabiliser is not the maximum",
        "_mlstm.py",
        "m_new = np.maximum(a + m, i)",
        "m_new = a + m",
    ),
    Fault(
        "mlstm",
        "absolute value of the normaliser forgotten",
        "_mlstm.py",
        "return numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]",
        "return numerator / (np.maximum(nu, normaliser_floor(m)) + eps)[..., None]",
    ),
    Fault(
        "mlstm",
        "NaN where the memory is empty",
        "_gates.py",
        "np.subtract(x, y, out=difference, where=~np.isneginf(x))",
        "np.subtract(x, y, out=difference)",
    ),
    Fault(
        "mlstm",
        "memory rounded to bfloat16 at each step",
        "_mlstm.py",
        "    return MLSTMState(C, n, m_new)",
        "    C = (C.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)\n"
        "    return MLSTMState(C, n, m_new)",
    ),
    Fault(
        "mlstm",
        "wrong only above 512 steps",
        "_mlstm.py",
        "        h[:, t] = _read(q[:, t], state, eps)",
        "        h[:, t] = _read(q[:, t], state, eps) * (1.0 if t < 512 else 1.001)",
    ),
    Fault(
        "mlstm",
        "an empty packed sequence takes its neighbour's state",
        "_mlstm.py",
        "        of_b = {name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()}",
        "        at = b - 1 if b and start == end else b\n"
        "        of_b = {name: MLSTMState(*(part[at : at + 1] for part in state)) for name, state in states.items()}",
    ),
    Fault(
        "mlstm",
        "an option is not checked",
        "arguments.py",
        '    call.integer("chunk_size", chunk_size, 1, optional=True)\n    _check_eps(call, eps)\n    return call\n',
        "    _check_eps(call, eps)\n    return call\n",
    ),
    Fault(
        "fwbw",
        "remainder of a chunk dropped",
        "_fwbw.py",
        "for start in range(0, T, L))",
        "for start in range(0, T - T % L if T > L else T, L))",
    ),
    Fault(
        "fwbw",
        "gradient misses what crosses a whole chunk",
        "_fwbw.py",
        "across + rev_cumsum(r) + w_before + through[:, None]",
        "across + rev_cumsum(r) + w_before",
    ),
    Fault(
        "causal_forget_matrix",
        "causal mask off by one in the gradient",
        "_decay.py",
        "    dF = np.tril(float64(dF), -1)",
        "    dF = np.tril(float64(dF), -2)",
    ),
    Fault(
        "dtilde_matrix",
        "masked rows left out of the input gate's gradient",
        "_decay.py",
        "float64(dD).sum(axis=-2)[..., None]",
        "np.tril(float64(dD)).sum(axis=-2)[..., None]",
    ),
    Fault(
        "rev_cumsum",
        "output is the input's memory",
        "_scan.py",
        "    y = float64(x)\n",
        "    y = x if x.dtype == np.float64 else float64(x)\n",
    ),
    Fault(
        "gru",
        "clipped after dy is added",
        "_gru.py",
        "dh = np.clip(dh, -bound, bound) + dy[t]",
        "dh = np.clip(dh + dy[t], -bound, bound)",
    ),
    Fault(
        "gru",
        "gradient of the initial state clipped",
        "_gru.py",
        "        dh0[b] = dh\n",
        "        dh0[b] = np.clip(dh, -bound, bound)\n",
    ),
    Fault(
        "gru",
        "grouped head reads n modulo its heads",
        "_gru.py",
        '        np.repeat(float64(array), call["N"] // array.shape[axis], axis=axis)\n',
        '        np.concatenate([float64(array)] * (call["N"] // array.shape[axis]), axis=axis)\n',
    ),
    Fault(
        "gru",
        "state rounded to bfloat16 at each step",
        "_gru.py",
        "            h = f * h + (1 - f) * z\n",
        "            h = f * h + (1 - f) * z\n"
        "            h = (h.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)\n",
    ),
    Fault(
        "gru",
        "an empty packed sequence returns zeros",
        "_gru.py",
        "        last[b] = h\n",
        "        last[b] = h if steps else 0\n",
    ),
    Fault(
        "gru",
        "input overwritten",
        "_gru.py",
        '    h0 = np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)\n'
        "    y, last",
        '    h0 = np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)\n'
        "    input *= 1 + 1e-3\n"
        "    y, last",
    ),
    Fault(
        "accumulate_gradients",
        "sum instead of mean in the scan",
        "_accumulate.py",
        "(g / num_minibatches).astype(p.dtype), state.params, total)",
        "g.astype(p.dtype), state.params, total)",
    ),
    Fault(
        "stack_params",
        "mask changes the dtype",
        "_sharding.py",
        "else np.zeros_like(value)",
        "else np.zeros(np.shape(value))",
    ),
)
