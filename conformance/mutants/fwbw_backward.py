"""Faults of the fwbw interface's backward pass."""

from conformance.mutants._mutant import Mutant

_SIGN = "np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)"
_ACROSS = "across + rev_cumsum(r) + w_before + through[:, None]"
_COTANGENTS = "given = [(dc_last, ctx.state.C), (dn_last, ctx.state.n), (dm_last, ctx.state.m)]"

ROWS = (
    Mutant("fwbw", "normaliser treated as a constant in the gradient", "_fwbw.py", _SIGN, "0.0"),
    Mutant("fwbw", "normaliser's gradient below its floor too", "_fwbw.py", _SIGN, "np.sign(p.nu)"),
    Mutant(
        "fwbw",
        "gradient misses what crosses a whole chunk",
        "_fwbw.py",
        _ACROSS,
        "across + rev_cumsum(r) + w_before",
    ),
    Mutant(
        "fwbw",
        "reads of the carried memory one step off in the forget gate's gradient",
        "_fwbw.py",
        _ACROSS,
        _ACROSS.replace("rev_cumsum(r)", "rev_cumsum(r) - r"),
    ),
    Mutant(
        "fwbw",
        "writes to the outgoing memory one step off in the forget gate's gradient",
        "_fwbw.py",
        _ACROSS,
        _ACROSS.replace("w_before", "w_before + w"),
    ),
    Mutant(
        "fwbw",
        "read of the carried normaliser dropped from the query's gradient",
        "_fwbw.py",
        "(delta @ p.c.C.mT + dnu[..., None] * p.c.n[:, None])",
        "(delta @ p.c.C.mT)",
    ),
    Mutant(
        "fwbw",
        "outgoing normaliser dropped from the key's gradient",
        "_fwbw.py",
        "(v @ dC.mT + dn[:, None])",
        "(v @ dC.mT)",
    ),
    Mutant(
        "fwbw",
        "normaliser's gradient does not reach earlier chunks",
        "_fwbw.py",
        '        dn = dn + np.einsum("bt,btk->bk", p.e * dnu, q_hat)\n',
        "",
    ),
    Mutant("fwbw", "dc_last accepted and ignored", "_fwbw.py", _COTANGENTS, _COTANGENTS.replace("dc_last", "None")),
    Mutant("fwbw", "dn_last accepted and ignored", "_fwbw.py", _COTANGENTS, _COTANGENTS.replace("dn_last", "None")),
    Mutant("fwbw", "dm_last accepted and ignored", "_fwbw.py", _COTANGENTS, _COTANGENTS.replace("dm_last", "None")),
    Mutant(
        "fwbw",
        "the stabiliser's write looked for in the last chunk alone",
        "_fwbw.py",
        "attained_at = np.maximum(attained_at, np.where(writes, steps, 0).max(axis=-1))",
        "attained_at = np.where(writes, steps, 0).max(axis=-1)",
    ),
    Mutant(
        "fwbw",
        "gradient of the initial stabiliser misses the final one's",
        "_fwbw.py",
        " + g * (attained_at == 0)\n",
        "\n",
    ),
    Mutant(
        "fwbw",
        "1/sqrt(K) left out of the gradient of q",
        "_fwbw.py",
        "        dq_hat / np.sqrt(ctx.q.shape[-1]),\n",
        "        dq_hat,\n",
    ),
    Mutant(
        "fwbw",
        "gate's gradient in another shape than the gate",
        "_fwbw.py",
        "        di.reshape(ctx.gate_shapes[0]),\n",
        "        di,\n",
    ),
    Mutant(
        "fwbw",
        "zeros for the gradients of a state that there is not",
        "_fwbw.py",
        "else (None, None, None)",
        "else (0 * dC, 0 * dn, 0 * dm)",
    ),
    Mutant(
        "fwbw",
        "causal mask of the values' gradient off by one",
        "_fwbw.py",
        "        dv[:, chunk] = p.G.mT @ delta",
        "        dv[:, chunk] = np.tril(p.G, -1).mT @ delta",
    ),
)
