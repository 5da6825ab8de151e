"""Faults of the GRU's gradient: its clipping, its paths, its groups."""

from conformance.mutants._mutant import Mutant

_CLIP = "            dh = np.clip(dh, -bound, bound) + dy[t]\n"
_DH = "            dh = dh * f + drh * r + _times(dxf[t], Wf.mT) + _times(dxr[t], Wr.mT)\n"
_DW = "            dW += (r * h)[:, :, None] * dx[t][:, None, :]\n"
_DWF = "            dWf += h[:, :, None] * dxf[t][:, None, :]\n"
_DSTATE = "    dh0 = np.zeros(h0.shape) if dstate is None else float64(dstate)\n"
_BOUND = "    bound = np.inf if gradient_clipping is None else abs(gradient_clipping)\n"
_DH0 = "        dh0[b] = dh\n"
_REDUCE = (
    "    return gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]).sum(axis=axis + 1)\n"
)
_LOOP = "    for b, steps in _sequences(call, cu_seqlens):\n        dh = dh0[b]\n"

ROWS = (
    Mutant(
        "gru", "clipped after dy is added", "_gru.py", _CLIP, "            dh = np.clip(dh + dy[t], -bound, bound)\n"
    ),
    Mutant(
        "gru",
        "final state's cotangent is not clipped",
        "_gru.py",
        _CLIP,
        "            dh = (np.clip(dh, -bound, bound) if position + 1 < len(steps) else dh) + dy[t]\n",
    ),
    Mutant(
        "gru",
        "gradient's norm is clipped, not its elements",
        "_gru.py",
        _CLIP,
        "            dh = dh * np.minimum(1.0, bound / np.maximum(np.linalg.norm(dh), 1e-300)) + dy[t]\n",
    ),
    Mutant("gru", "clipping accepted and ignored", "_gru.py", _BOUND, "    bound = np.inf\n"),
    Mutant(
        "gru",
        "negative clipping clips to one value",
        "_gru.py",
        _BOUND,
        _BOUND.replace("abs(gradient_clipping)", "gradient_clipping"),
    ),
    Mutant(
        "gru", "gradient of the initial state clipped", "_gru.py", _DH0, "        dh0[b] = np.clip(dh, -bound, bound)\n"
    ),
    Mutant(
        "gru",
        "gradient of an empty packed sequence's initial state zero",
        "_gru.py",
        _DH0,
        "        dh0[b] = dh if steps else 0\n",
    ),
    Mutant(
        "gru",
        "cotangent of the final state dropped",
        "_gru.py",
        _DSTATE,
        "    dh0 = np.zeros(h0.shape)\n",
    ),
    Mutant("gru", "gradient passes the reset gate unscaled", "_gru.py", _DH, _DH.replace("drh * r", "drh")),
    Mutant(
        "gru",
        "gradient through the reset gate's weight dropped",
        "_gru.py",
        _DH,
        _DH.replace(" + _times(dxr[t], Wr.mT)", ""),
    ),
    Mutant(
        "gru", "gradient through the forget gate's weight not transposed", "_gru.py", _DH, _DH.replace("Wf.mT", "Wf")
    ),
    Mutant("gru", "gradient past the forget gate dropped", "_gru.py", _DH, _DH.replace("dh * f + ", "")),
    Mutant(
        "gru",
        "forget gate's gradient with the other sign",
        "_gru.py",
        "dh * (h - z) * f * (1 - f)",
        "dh * (z - h) * f * (1 - f)",
    ),
    Mutant(
        "gru",
        "derivative of the sigmoid for that of the hyperbolic tangent",
        "_gru.py",
        "dh * (1 - f) * (1 - z * z)",
        "dh * (1 - f) * z * (1 - z)",
    ),
    Mutant("gru", "weight's gradient without the reset gate", "_gru.py", _DW, _DW.replace("(r * h)", "h")),
    Mutant("gru", "weight's gradient takes the state after the step", "_gru.py", _DWF, _DWF.replace("h[:", "y[t][:")),
    Mutant(
        "gru",
        "weight's gradient is the last sequence's",
        "_gru.py",
        _LOOP,
        _LOOP + "        dWr[...] = 0\n",
    ),
    Mutant(
        "gru",
        "weight's gradient is summed in an order that changes",
        "_gru.py",
        _LOOP,
        "    order = _times.__dict__.setdefault('order', np.random.default_rng(0)).permutation(call[\"B\"])\n"
        "    sequences = _sequences(call, cu_seqlens)\n"
        "    for b, steps in (sequences[at] for at in order):\n"
        "        dh = dh0[b]\n",
    ),
    Mutant(
        "gru",
        "gradient of another head of the group",
        "_gru.py",
        _REDUCE,
        _REDUCE.replace("heads, shape[axis] // heads,", "shape[axis] // heads, heads,").replace(
            "axis=axis + 1)", "axis=axis)"
        ),
    ),
    Mutant("gru", "gradient is the mean of its group", "_gru.py", _REDUCE, _REDUCE.replace(".sum(", ".mean(")),
    Mutant(
        "gru",
        "gradient of a weight in float32",
        "_gru.py",
        '        weight=_reduce(dW, call["Nw"], 0),\n',
        '        weight=_reduce(dW, call["Nw"], 0).astype(np.float32),\n',
    ),
    Mutant(
        "gru",
        "gradient of the initial state written into the cotangent",
        "_gru.py",
        _DSTATE,
        _DSTATE.replace("float64(dstate)", "np.asarray(dstate, np.float64)"),
    ),
)
