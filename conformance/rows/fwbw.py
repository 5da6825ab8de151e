"""Faults of the fwbw interface's forward pass: its chunks, its switches, its context."""

from conformance.rows.row import changes

ROWS = changes("""
    @ fwbw _fwbw.py _chunks

    remainder of a chunk dropped
    - range(0, T, L)
    + range(0, T - T % L if T > L else T, L)

    @ fwbw _fwbw.py fwbw_forward

    initial state ignored
    - initial_C is None
    + initial_C is None or True

    @ fwbw _fwbw.py _chunk_forward

    1/√K left out
    - context.q[:, chunk] / np.sqrt(context.q.shape[-1])
    + context.q[:, chunk]

    forget gate taken to be a logarithm already, f for log σ(f)
    - log_sigmoid(context.f[:, chunk])
    + context.f[:, chunk]

    chunk leaves the carried memory out of its stabiliser
    - np.maximum(carried, D.max(axis=-1))
    + D.max(axis=-1)

    stabilize_correctly accepted and ignored
    - normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)
    + normaliser_floor(M)

    never stabilised correctly
    - normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)
    + np.ones_like(M)

    decay is a difference of sums of gates that are held above -1e4
    - gates = Gates(a, np.cumsum(a, axis=-1), causal_forget_matrix(a))
    + b = np.cumsum(np.maximum(a, -10000.0), axis=-1)
    + F = np.where(np.tri(b.shape[-1], dtype=bool), b[..., None] - b[..., None, :], -np.inf)
    + gates = Gates(a, np.cumsum(a, axis=-1), F)

    input gate of the row, not of the column
    - i[:, None, :]
    + i[:, :, None]

    carried memory is not scaled by 1/sqrt(K)
    - q_hat @ start.C
    + context.q[:, chunk] @ start.C

    absolute value of the normaliser forgotten
    - np.abs(nu)
    + nu

    @ fwbw _fwbw.py _chunk_end

    final normaliser forgets what it carried
    - kept[:, None] * pieces.c.n + weighted_k.sum(axis=1)
    + weighted_k.sum(axis=1)

    @ fwbw _fwbw.py fwbw_forward

    memory is not carried beyond 512 steps
    - pieces = _chunk_forward(context, chunk, number, config, start=last)
    + last = state if chunk.start >= 512 else last
    + ...

    kept scores in float32
    - getattr(pieces, name)
    + pieces.G.astype(np.float32) if name == "G" else getattr(pieces, name)

    kept stabilisers in float16
    - getattr(pieces, name)
    + pieces.M.astype(np.float16) if name == "M" else getattr(pieces, name)

    @ fwbw _fwbw.py _starts

    kept memory of the first chunk taken for all
    - ctx.c[number]
    + ctx.c[0]

    @ fwbw _fwbw.py _chunk_forward

    keep_gates keeps the chunk's sums without their first gate
    - gates = context.gates[number]
    + ...
    + gates = gates._replace(b=gates.b - gates.b[:, :1] * np.isfinite(gates.b[:, :1]))

    @ fwbw _fwbw.py fwbw_forward

    input overwritten
    - h = np.empty(v.shape)
    + q *= np.asarray(0.5, q.dtype)
    + ...
""")
