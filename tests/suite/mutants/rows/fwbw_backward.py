"""Faults of the fwbw interface's backward pass."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="fwbw",
        name="normaliser treated as a constant in the gradient",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)",
        by="0.0",
    ),
    Mutant(
        op="fwbw",
        name="normaliser's gradient below its floor too",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)",
        by="np.sign(p.nu)",
    ),
    Mutant(
        op="fwbw",
        name="gradient misses what crosses a whole chunk",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="across + rev_cumsum(r) + w_before + through[:, None]",
        by="across + rev_cumsum(r) + w_before",
    ),
    Mutant(
        op="fwbw",
        name="reads of the carried memory one step off in the forget gate's gradient",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="across + rev_cumsum(r)",
        by="across + rev_cumsum(r) - r",
    ),
    Mutant(
        op="fwbw",
        name="writes to the outgoing memory one step off in the forget gate's gradient",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="across + rev_cumsum(r) + w_before",
        by="across + rev_cumsum(r) + w_before + w",
    ),
    Mutant(
        op="fwbw",
        name="read of the carried normaliser dropped from the query's gradient",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="delta @ p.c.C.mT + dnu[..., None] * p.c.n[:, None]",
        by="delta @ p.c.C.mT",
    ),
    Mutant(
        op="fwbw",
        name="outgoing normaliser dropped from the key's gradient",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="v @ dC.mT + dn[:, None]",
        by="v @ dC.mT",
    ),
    Mutant(
        op="fwbw",
        name="normaliser's gradient does not reach earlier chunks",
        module="_fwbw.py",
        function="fwbw_backward",
        replace='dn = dn + np.einsum("bt,btk->bk", p.e * dnu, q_hat)',
        by="",
    ),
    Mutant(
        op="fwbw",
        name="dc_last accepted and ignored",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="(dc_last, ctx.state.C)",
        by="(None, ctx.state.C)",
    ),
    Mutant(
        op="fwbw",
        name="dn_last accepted and ignored",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="(dn_last, ctx.state.n)",
        by="(None, ctx.state.n)",
    ),
    Mutant(
        op="fwbw",
        name="dm_last accepted and ignored",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="(dm_last, ctx.state.m)",
        by="(None, ctx.state.m)",
    ),
    Mutant(
        op="fwbw",
        name="the stabiliser's write looked for in the last chunk alone",
        module="_fwbw.py",
        function="_starts",
        replace="np.maximum(attained_at, np.where(writes, steps, 0).max(axis=-1))",
        by="np.where(writes, steps, 0).max(axis=-1)",
    ),
    Mutant(
        op="fwbw",
        name="gradient of the initial stabiliser misses the final one's",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="""
            (
                np.einsum("bkv,bkv->b", ctx.state.C, dC)
                + np.einsum("bk,bk->b", ctx.state.n, dn)
                + g * (attained_at == 0)
            )
        """,
        by='np.einsum("bkv,bkv->b", ctx.state.C, dC) + np.einsum("bk,bk->b", ctx.state.n, dn)',
    ),
    Mutant(
        op="fwbw",
        name="1/sqrt(K) left out of the gradient of q",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="dq_hat / np.sqrt(ctx.q.shape[-1])",
        by="dq_hat",
    ),
    Mutant(
        op="fwbw",
        name="gate's gradient in another shape than the gate",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="di.reshape(ctx.gate_shapes[0])",
        by="di",
    ),
    Mutant(
        op="fwbw",
        name="zeros for the gradients of a state that there is not",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="(None, None, None)",
        by="(0 * dC, 0 * dn, 0 * dm)",
    ),
    Mutant(
        op="fwbw",
        name="causal mask of the values' gradient off by one",
        module="_fwbw.py",
        function="fwbw_backward",
        replace="p.G.mT",
        by="np.tril(p.G, -1).mT",
    ),
)
