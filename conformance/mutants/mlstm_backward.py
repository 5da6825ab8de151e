"""Faults of the mLSTM's gradient."""

from conformance.mutants._mutant import Mutant

_RESULT = "    return (dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f)), MLSTMState(dC, dn, dm)\n"
_ATTAINED = "attained_at = np.where(i[:, t] > a[:, t] + states[t].m, t + 1, attained_at)"
_SIGN = "np.where(np.abs(nu) > floor, np.sign(nu), 0.0)"
_LAST = "    g = dlast.m - _dot(states[S], dlast)\n"

ROWS = (
    Mutant("mlstm", "normaliser treated as a constant in the gradient", "_mlstm.py", _SIGN, "0.0"),
    Mutant("mlstm", "normaliser's gradient without its sign", "_mlstm.py", _SIGN, "(np.abs(nu) > floor)"),
    Mutant("mlstm", "normaliser's gradient below its floor too", "_mlstm.py", _SIGN, "np.sign(nu)"),
    Mutant(
        "mlstm",
        "normaliser's gradient reaches the query alone",
        "_mlstm.py",
        "        dn += dnu[..., None] * q_hat[:, t]\n",
        "",
    ),
    Mutant(
        "mlstm",
        "normaliser's gradient does not reach the query",
        "_mlstm.py",
        'np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n\n',
        'np.einsum("bnkv,bnv->bnk", C, delta)\n',
    ),
    Mutant(
        "mlstm",
        "eps dropped in the gradient",
        "_mlstm.py",
        "        Y = np.maximum(np.abs(nu), floor) + eps\n",
        "        Y = np.maximum(np.abs(nu), floor)\n",
    ),
    Mutant(
        "mlstm",
        "1/sqrt(K) twice in the gradient of q",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace("np.sqrt(q.shape[-1])", "q.shape[-1]"),
    ),
    Mutant(
        "mlstm",
        "1/sqrt(K) left out of the gradient of q",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace("dq / np.sqrt(q.shape[-1])", "dq"),
    ),
    Mutant(
        "mlstm",
        "1/sqrt(K) too many in the forget gate's gradient",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace("da * sigmoid(-f)", "da / np.sqrt(q.shape[-1]) * sigmoid(-f)"),
    ),
    Mutant(
        "mlstm",
        "forget gate's gradient times sigmoid of the gate",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace("sigmoid(-f)", "sigmoid(f)"),
    ),
    Mutant(
        "mlstm",
        "forget gate's gradient is a sum over the whole sequence that cancels",
        "_mlstm.py",
        _RESULT,
        "    flow = (q_hat * dq).sum(axis=-1) - (k * dk).sum(axis=-1)\n"
        "    later = np.arange(1, S + 1)[:, None] > attained_at[:, None]\n"
        "    da = np.cumsum(flow[:, ::-1], axis=1)[:, ::-1] + _dot(states[S], dlast)[:, None] + g[:, None] * later\n"
        + _RESULT,
    ),
    Mutant(
        "mlstm",
        "gradient of the initial stabiliser zero",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace("MLSTMState(dC, dn, dm)", "MLSTMState(dC, dn, 0 * dm)"),
    ),
    Mutant(
        "mlstm",
        "gradient of k in float32",
        "_mlstm.py",
        _RESULT,
        _RESULT.replace(", dk, dv", ", dk.astype(np.float32), dv"),
    ),
    Mutant(
        "mlstm",
        "cotangents of the final state dropped",
        "_mlstm.py",
        "if dstate is None else map(float64, dstate)",
        "if True else map(float64, dstate)",
    ),
    Mutant(
        "mlstm",
        "cotangent of the final normaliser dropped",
        "_mlstm.py",
        _LAST,
        _LAST + "    dn = 0 * dn\n",
    ),
    Mutant("mlstm", "cotangent of the final stabiliser dropped", "_mlstm.py", _LAST, "    g = 0 * dlast.m\n"),
    Mutant(
        "mlstm",
        "cotangent of the stabiliser without what C and n owe to it",
        "_mlstm.py",
        _LAST,
        "    g = dlast.m\n",
    ),
    Mutant(
        "mlstm",
        "cotangent of the stabiliser given to the first write",
        "_mlstm.py",
        _ATTAINED,
        _ATTAINED.replace("i[:, t] >", "(attained_at == 0) & (i[:, t] >").replace(".m, t", ".m), t"),
    ),
    Mutant(
        "mlstm",
        "cotangent of the stabiliser given to the write at a tie",
        "_mlstm.py",
        _ATTAINED,
        _ATTAINED.replace("i[:, t] >", "i[:, t] >="),
    ),
    Mutant(
        "mlstm",
        "cotangent of the stabiliser misses the decays after its write",
        "_mlstm.py",
        " + g * (attained_at < t + 1)\n",
        "\n",
    ),
    Mutant(
        "mlstm",
        "cotangent of the stabiliser misses its write",
        "_mlstm.py",
        " + g * (attained_at == t + 1)\n",
        "\n",
    ),
    Mutant(
        "mlstm",
        "key's gradient misses the normaliser",
        "_mlstm.py",
        '(np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn)',
        'np.einsum("bnkv,bnv->bnk", dC, v[:, t])',
    ),
    Mutant(
        "mlstm",
        "forget gate's gradient misses the normaliser",
        "_mlstm.py",
        "da[:, t] = _dot(states[t], MLSTMState(dC, dn, None))",
        "da[:, t] = _dot(states[t], MLSTMState(dC, 0 * dn, None))",
    ),
    Mutant(
        "mlstm",
        "decay of the step before in the gradient",
        "_mlstm.py",
        "decay = exp_difference(a[:, t] + states[t].m, m)",
        "decay = exp_difference(a[:, max(t - 1, 0)] + states[t].m, m)",
    ),
    Mutant(
        "mlstm",
        "gradient does not cross step 512",
        "_mlstm.py",
        "        gain = exp_difference(i[:, t], m)[..., None]\n",
        "        if t == 512:\n            dC, dn = 0 * dC, 0 * dn\n"
        "        gain = exp_difference(i[:, t], m)[..., None]\n",
    ),
    Mutant(
        "mlstm",
        "cotangent used as scratch space",
        "_mlstm.py",
        '    result = dict(zip("qkvif", gradients, strict=True))\n',
        '    dh *= 2\n    result = dict(zip("qkvif", gradients, strict=True))\n',
    ),
    Mutant(
        "mlstm",
        "gradients of the initial state returned as zero",
        "_mlstm.py",
        '{**result, "initial_state": dinitial}',
        '{**result, "initial_state": MLSTMState(*(0 * part for part in dinitial))}',
    ),
    Mutant(
        "mlstm",
        "cotangents of the final state dropped where sequences are packed",
        "_mlstm.py",
        "_each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)",
        "_each_sequence(\n"
        "            whole, arrays, cu_seqlens, state=state, dlast=MLSTMState(*(0 * part for part in dlast))\n"
        "        )",
    ),
)
