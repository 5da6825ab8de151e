"""Faults of the GRU's value: its gates, its heads, its packing."""

from conformance.mutants._mutant import Mutant

_STEP = "            h = f * h + (1 - f) * z\n"
_STATE = (
    '    h0 = np.zeros((call["B"], call["N"], call["H"])) if input_state is None else float64(input_state)\n    y, last'
)
_EXPAND = '        np.repeat(float64(array), call["N"] // array.shape[axis], axis=axis)\n'
_RETURN = "        last[b] = h\n    return y, last\n"

ROWS = (
    Mutant(
        "gru",
        "reset gate after the product",
        "_gru.py",
        "    z = np.tanh(_times(r * h, W) + x)\n",
        "    z = np.tanh(r * _times(h, W) + x)\n",
    ),
    Mutant(
        "gru",
        "reset gate on the input too",
        "_gru.py",
        "    z = np.tanh(_times(r * h, W) + x)\n",
        "    z = np.tanh(_times(r * h, W) + r * x)\n",
    ),
    Mutant(
        "gru",
        "forget gate and its complement swapped",
        "_gru.py",
        _STEP,
        _STEP.replace("f * h + (1 - f) * z", "(1 - f) * h + f * z"),
    ),
    Mutant(
        "gru",
        "forget gate of 1 does not keep the state bit by bit",
        "_gru.py",
        _STEP,
        _STEP.replace("f * h + (1 - f) * z", "z + f * (h - z)"),
    ),
    Mutant(
        "gru",
        "forget gate with a bias of its own",
        "_gru.py",
        "    f = sigmoid(_times(h, Wf) + xf)\n",
        "    f = sigmoid(_times(h, Wf) + xf + 1)\n",
    ),
    Mutant(
        "gru",
        "reset gate reads the forget gate's input",
        "_gru.py",
        "    r = sigmoid(_times(h, Wr) + xr)\n",
        "    r = sigmoid(_times(h, Wr) + xf)\n",
    ),
    Mutant(
        "gru",
        "weights transposed",
        "_gru.py",
        'np.einsum("ni,nij->nj", h, W)',
        'np.einsum("ni,nji->nj", h, W)',
    ),
    Mutant(
        "gru",
        "gates held between sigmoids of -8 and 8",
        "_gru.py",
        "    f = sigmoid(_times(h, Wf) + xf)\n",
        "    f = sigmoid(np.clip(_times(h, Wf) + xf, -8, 8))\n",
    ),
    Mutant(
        "gru",
        "grouped head reads n modulo its heads",
        "_gru.py",
        _EXPAND,
        _EXPAND.replace("np.repeat(float64(array), ", "np.concatenate([float64(array)] * (").replace(
            "], axis=axis)", "]), axis=axis)"
        ),
    ),
    Mutant(
        "gru",
        "weights of two gates swapped where heads are grouped",
        "_gru.py",
        _STATE,
        '    if call["Nwf"] < call["N"]:\n        Wf, Wr = Wr, Wf\n' + _STATE,
    ),
    Mutant(
        "gru",
        "state rounded to bfloat16 at each step",
        "_gru.py",
        _STEP,
        _STEP
        + "            h = (h.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)\n",
    ),
    Mutant(
        "gru",
        "state handed on in float16 every 512 steps",
        "_gru.py",
        "        for t in steps:\n            _, f, z",
        "        for number, t in enumerate(steps):\n"
        "            if number and number % 512 == 0:\n"
        "                h = h.astype(np.float16).astype(np.float64)\n"
        "            _, f, z",
    ),
    Mutant(
        "gru",
        "a tenth of all calls is off by 1e-6",
        "_gru.py",
        _RETURN,
        _RETURN.replace(
            "    return y",
            "    calls = _times.__dict__.setdefault('calls', np.random.default_rng(0))\n"
            "    y *= 1 + 1e-6 * (calls.random() < 0.1)\n    return y",
        ),
    ),
    Mutant(
        "gru",
        "final state shares the output's memory",
        "_gru.py",
        _RETURN,
        _RETURN.replace(
            "    return y", '    if cu_seqlens is None and call["S"]:\n        last = y[:, -1]\n    return y'
        ),
    ),
    Mutant(
        "gru",
        "an empty packed sequence returns zeros",
        "_gru.py",
        _RETURN,
        _RETURN.replace("= h\n", "= h if steps else 0\n"),
    ),
    Mutant(
        "gru",
        "an empty packed sequence returns its neighbour's last token",
        "_gru.py",
        _RETURN,
        _RETURN.replace("= h\n", "= h if steps or not b else last[b - 1]\n"),
    ),
    Mutant(
        "gru",
        "state is not reset between packed sequences",
        "_gru.py",
        "        h = h0[b]\n        for t in steps:",
        "        h = h0[b] if cu_seqlens is None or not b else last[b - 1]\n        for t in steps:",
    ),
    Mutant(
        "gru",
        "initial state ignored where sequences are packed",
        "_gru.py",
        _STATE,
        _STATE.replace("if input_state is None else", "if input_state is None or cu_seqlens is not None else"),
    ),
    Mutant("gru", "input overwritten", "_gru.py", _STATE, _STATE.replace("    y,", "    input *= 1 + 1e-3\n    y,")),
    Mutant(
        "gru",
        "answers in float32",
        "_gru.py",
        _RETURN,
        _RETURN.replace("return y,", "return y.astype(np.float32),"),
    ),
)
