"""Faults of the fwbw interface's forward pass: its chunks, its switches, its context."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="fwbw",
        name="remainder of a chunk dropped",
        module="_fwbw.py",
        function="_chunks",
        replace="range(0, T, L)",
        by="range(0, T - T % L if T > L else T, L)",
    ),
    Mutant(
        op="fwbw",
        name="chunk leaves the carried memory out of its stabiliser",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="np.maximum(carried, D.max(axis=-1))",
        by="D.max(axis=-1)",
    ),
    Mutant(
        op="fwbw",
        name="stabilize_correctly accepted and ignored",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)",
        by="normaliser_floor(M)",
    ),
    Mutant(
        op="fwbw",
        name="never stabilised correctly",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)",
        by="np.ones_like(M)",
    ),
    Mutant(
        op="fwbw",
        name="decay is a difference of sums of gates that are held above -1e4",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="gates = Gates(a, np.cumsum(a, axis=-1), causal_forget_matrix(a))",
        by="""
            b = np.cumsum(np.maximum(a, -10000.0), axis=-1)
            F = np.where(np.tri(b.shape[-1], dtype=bool), b[..., None] - b[..., None, :], -np.inf)
            gates = Gates(a, np.cumsum(a, axis=-1), F)
        """,
    ),
    Mutant(
        op="fwbw",
        name="input gate of the row, not of the column",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="i[:, None, :]",
        by="i[:, :, None]",
    ),
    Mutant(
        op="fwbw",
        name="carried memory is not scaled by 1/sqrt(K)",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="q_hat @ start.C",
        by="context.q[:, chunk] @ start.C",
    ),
    Mutant(
        op="fwbw",
        name="absolute value of the normaliser forgotten",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="np.abs(nu)",
        by="nu",
    ),
    Mutant(
        op="fwbw",
        name="final normaliser forgets what it carried",
        module="_fwbw.py",
        function="_chunk_end",
        replace="kept[:, None] * pieces.c.n + weighted_k.sum(axis=1)",
        by="weighted_k.sum(axis=1)",
    ),
    Mutant(
        op="fwbw",
        name="memory is not carried beyond 512 steps",
        module="_fwbw.py",
        function="fwbw_forward",
        replace="pieces = _chunk_forward(context, chunk, number, config, start=last)",
        by="""
            last = state if chunk.start >= 512 else last
            pieces = _chunk_forward(context, chunk, number, config, start=last)
        """,
    ),
    Mutant(
        op="fwbw",
        name="kept scores in float32",
        module="_fwbw.py",
        function="fwbw_forward",
        replace="getattr(pieces, name)",
        by='pieces.G.astype(np.float32) if name == "G" else getattr(pieces, name)',
    ),
    Mutant(
        op="fwbw",
        name="kept stabilisers in float16",
        module="_fwbw.py",
        function="fwbw_forward",
        replace="getattr(pieces, name)",
        by='pieces.M.astype(np.float16) if name == "M" else getattr(pieces, name)',
    ),
    Mutant(
        op="fwbw",
        name="kept memory of the first chunk taken for all",
        module="_fwbw.py",
        function="_starts",
        replace="ctx.c[number]",
        by="ctx.c[0]",
    ),
    Mutant(
        op="fwbw",
        name="keep_gates keeps the chunk's sums without their first gate",
        module="_fwbw.py",
        function="_chunk_forward",
        replace="gates = context.gates[number]",
        by="""
            gates = context.gates[number]
            gates = gates._replace(b=gates.b - gates.b[:, :1] * np.isfinite(gates.b[:, :1]))
        """,
    ),
    Mutant(
        op="fwbw",
        name="input overwritten",
        module="_fwbw.py",
        function="fwbw_forward",
        replace="h = np.empty(v.shape)",
        by="""
            q *= np.asarray(0.5, q.dtype)
            h = np.empty(v.shape)
        """,
    ),
)
