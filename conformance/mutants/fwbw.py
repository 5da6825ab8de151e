"""Faults of the fwbw interface's forward pass: its chunks, its switches, its context."""

from conformance.mutants._mutant import Mutant

_FLOOR = "normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)"
_GATES = "gates = Gates(a, np.cumsum(a, axis=-1), causal_forget_matrix(a))\n"
_KEPT = "            kept[name].append(getattr(pieces, name))\n"

ROWS = (
    Mutant(
        "fwbw",
        "remainder of a chunk dropped",
        "_fwbw.py",
        "for start in range(0, T, L))",
        "for start in range(0, T - T % L if T > L else T, L))",
    ),
    Mutant(
        "fwbw",
        "chunk leaves the carried memory out of its stabiliser",
        "_fwbw.py",
        "M = np.maximum(carried, D.max(axis=-1)) if",
        "M = D.max(axis=-1) if",
    ),
    Mutant("fwbw", "stabilize_correctly accepted and ignored", "_fwbw.py", _FLOOR, "normaliser_floor(M)"),
    Mutant("fwbw", "never stabilised correctly", "_fwbw.py", _FLOOR, "np.ones_like(M)"),
    Mutant(
        "fwbw",
        "decay is a difference of sums of gates that are held above -1e4",
        "_fwbw.py",
        _GATES,
        "b = np.cumsum(np.maximum(a, -1e4), axis=-1)\n"
        "        F = np.where(np.tri(b.shape[-1], dtype=bool), b[..., None] - b[..., None, :], -np.inf)\n"
        "        gates = Gates(a, np.cumsum(a, axis=-1), F)\n",
    ),
    Mutant(
        "fwbw",
        "input gate of the row, not of the column",
        "_fwbw.py",
        "gates.F + i[:, None, :])",
        "gates.F + i[:, :, None])",
    ),
    Mutant(
        "fwbw",
        "carried memory is not scaled by 1/sqrt(K)",
        "_fwbw.py",
        "e[..., None] * (q_hat @ start.C)\n",
        "e[..., None] * (context.q[:, chunk] @ start.C)\n",
    ),
    Mutant(
        "fwbw",
        "absolute value of the normaliser forgotten",
        "_fwbw.py",
        "    h = numerator / np.maximum(np.abs(nu), floor)[..., None]\n",
        "    h = numerator / np.maximum(nu, floor)[..., None]\n",
    ),
    Mutant(
        "fwbw",
        "final normaliser forgets what it carried",
        "_fwbw.py",
        "    n = kept[:, None] * pieces.c.n + weighted_k.sum(axis=1)\n",
        "    n = weighted_k.sum(axis=1)\n",
    ),
    Mutant(
        "fwbw",
        "memory is not carried beyond 512 steps",
        "_fwbw.py",
        "        pieces = _chunk_forward(context, chunk, number, config, start=last)\n",
        "        last = state if chunk.start >= 512 else last\n"
        "        pieces = _chunk_forward(context, chunk, number, config, start=last)\n",
    ),
    Mutant(
        "fwbw",
        "kept scores in float32",
        "_fwbw.py",
        _KEPT,
        _KEPT.replace("getattr(pieces, name)", 'pieces.G.astype(np.float32) if name == "G" else getattr(pieces, name)'),
    ),
    Mutant(
        "fwbw",
        "kept stabilisers in float16",
        "_fwbw.py",
        _KEPT,
        _KEPT.replace("getattr(pieces, name)", 'pieces.M.astype(np.float16) if name == "M" else getattr(pieces, name)'),
    ),
    Mutant(
        "fwbw",
        "kept memory of the first chunk taken for all",
        "_fwbw.py",
        "ctx.c[number])",
        "ctx.c[0])",
    ),
    Mutant(
        "fwbw",
        "keep_gates keeps the chunk's sums without their first gate",
        "_fwbw.py",
        "        gates = context.gates[number]\n",
        "        gates = context.gates[number]\n"
        "        gates = gates._replace(b=gates.b - gates.b[:, :1] * np.isfinite(gates.b[:, :1]))\n",
    ),
    Mutant(
        "fwbw",
        "input overwritten",
        "_fwbw.py",
        "    h = np.empty(v.shape)\n    kept: dict",
        "    q *= np.asarray(0.5, q.dtype)\n    h = np.empty(v.shape)\n    kept: dict",
    ),
)
