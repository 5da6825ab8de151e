"""Faults of the fwbw interface's backward pass."""

from conformance.rows.row import changes

ROWS = changes("""
    @ fwbw _fwbw.py fwbw_backward

    normaliser held constant in the gradient
    - np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)
    + 0.0

    normaliser's gradient below its floor too
    - np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)
    + np.sign(p.nu)

    gradient misses what crosses a whole chunk
    - across + rev_cumsum(r) + w_before + through[:, None]
    + across + rev_cumsum(r) + w_before

    reads of the carried memory one step off in the forget gate's gradient
    - across + rev_cumsum(r)
    + across + rev_cumsum(r) - r

    writes to the outgoing memory one step off in the forget gate's gradient
    - across + rev_cumsum(r) + w_before
    + across + rev_cumsum(r) + w_before + w

    read of the carried normaliser dropped from the query's gradient
    - delta @ p.c.C.mT + dnu[..., None] * p.c.n[:, None]
    + delta @ p.c.C.mT

    outgoing normaliser dropped from the key's gradient
    - v @ dC.mT + dn[:, None]
    + v @ dC.mT

    normaliser's gradient does not reach earlier chunks
    - dn = dn + np.einsum("bt,btk->bk", p.e * dnu, q_hat)

    dc_last accepted and ignored
    - (dc_last, ctx.state.C)
    + (None, ctx.state.C)

    dn_last accepted and ignored
    - (dn_last, ctx.state.n)
    + (None, ctx.state.n)

    dm_last accepted and ignored
    - (dm_last, ctx.state.m)
    + (None, ctx.state.m)

    @ fwbw _fwbw.py _starts

    the stabiliser's write looked for in the last chunk alone
    - np.maximum(attained_at, np.where(writes, steps, 0).max(axis=-1))
    + np.where(writes, steps, 0).max(axis=-1)

    @ fwbw _fwbw.py fwbw_backward

    gradient of the initial stabiliser misses the final one's
    - (
    -     np.einsum("bkv,bkv->b", ctx.state.C, dC)
    -     + np.einsum("bk,bk->b", ctx.state.n, dn)
    -     + g * (attained_at == 0)
    - )
    + np.einsum("bkv,bkv->b", ctx.state.C, dC) + np.einsum("bk,bk->b", ctx.state.n, dn)

    1/sqrt(K) left out of the gradient of q
    - dq_hat / np.sqrt(ctx.q.shape[-1])
    + dq_hat

    gate's gradient in another shape than the gate
    - di.reshape(ctx.gate_shapes[0])
    + di

    zeros for the gradients of a state that was not given
    - (None, None, None)
    + (0 * dC, 0 * dn, 0 * dm)

    causal mask of the values' gradient off by one
    - p.G.mT
    + np.tril(p.G, -1).mT
""")
