"""Faults of the mLSTM's gradient."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="mlstm",
        name="normaliser treated as a constant in the gradient",
        module="_mlstm.py",
        function="_backward",
        replace="np.where(np.abs(nu) > floor, np.sign(nu), 0.0)",
        by="0.0",
    ),
    Mutant(
        op="mlstm",
        name="normaliser's gradient without its sign",
        module="_mlstm.py",
        function="_backward",
        replace="np.where(np.abs(nu) > floor, np.sign(nu), 0.0)",
        by="np.abs(nu) > floor",
    ),
    Mutant(
        op="mlstm",
        name="normaliser's gradient below its floor too",
        module="_mlstm.py",
        function="_backward",
        replace="np.where(np.abs(nu) > floor, np.sign(nu), 0.0)",
        by="np.sign(nu)",
    ),
    Mutant(
        op="mlstm",
        name="normaliser's gradient reaches the query alone",
        module="_mlstm.py",
        function="_backward",
        replace="dn += dnu[..., None] * q_hat[:, t]",
        by="",
    ),
    Mutant(
        op="mlstm",
        name="normaliser's gradient does not reach the query",
        module="_mlstm.py",
        function="_backward",
        replace='np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n',
        by='np.einsum("bnkv,bnv->bnk", C, delta)',
    ),
    Mutant(
        op="mlstm",
        name="eps dropped in the gradient",
        module="_mlstm.py",
        function="_backward",
        replace="np.maximum(np.abs(nu), floor) + eps",
        by="np.maximum(np.abs(nu), floor)",
    ),
    Mutant(
        op="mlstm",
        name="1/sqrt(K) twice in the gradient of q",
        module="_mlstm.py",
        function="_backward",
        replace="dq / np.sqrt(q.shape[-1])",
        by="dq / q.shape[-1]",
    ),
    Mutant(
        op="mlstm",
        name="1/sqrt(K) left out of the gradient of q",
        module="_mlstm.py",
        function="_backward",
        replace="dq / np.sqrt(q.shape[-1])",
        by="dq",
    ),
    Mutant(
        op="mlstm",
        name="1/sqrt(K) too many in the forget gate's gradient",
        module="_mlstm.py",
        function="_backward",
        replace="da * sigmoid(-f)",
        by="da / np.sqrt(q.shape[-1]) * sigmoid(-f)",
    ),
    Mutant(
        op="mlstm",
        name="forget gate's gradient times sigmoid of the gate",
        module="_mlstm.py",
        function="_backward",
        replace="-f",
        by="f",
    ),
    Mutant(
        op="mlstm",
        name="forget gate's gradient is a sum over the whole sequence that cancels",
        module="_mlstm.py",
        function="_backward",
        replace="dm = _dot(state, MLSTMState(dC, dn, None)) + g * (attained_at == 0)",
        by="""
            dm = _dot(state, MLSTMState(dC, dn, None)) + g * (attained_at == 0)
            flow = (q_hat * dq).sum(axis=-1) - (k * dk).sum(axis=-1)
            later = np.arange(1, S + 1)[:, None] > attained_at[:, None]
            da = (
                np.cumsum(flow[:, ::-1], axis=1)[:, ::-1]
                + _dot(states[S], dlast)[:, None]
                + g[:, None] * later
            )
        """,
    ),
    Mutant(
        op="mlstm",
        name="gradient of the initial stabiliser zero",
        module="_mlstm.py",
        function="_backward",
        replace="MLSTMState(dC, dn, dm)",
        by="MLSTMState(dC, dn, 0 * dm)",
    ),
    Mutant(
        op="mlstm",
        name="gradient of k in float32",
        module="_mlstm.py",
        function="_backward",
        replace="(dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f))",
        by="(dq / np.sqrt(q.shape[-1]), dk.astype(np.float32), dv, di, da * sigmoid(-f))",
    ),
    Mutant(
        op="mlstm",
        name="cotangents of the final state dropped",
        module="_mlstm.py",
        function="mlstm_backward",
        replace="dstate is None",
        by="True",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the final normaliser dropped",
        module="_mlstm.py",
        function="_backward",
        replace="g = dlast.m - _dot(states[S], dlast)",
        by="""
            g = dlast.m - _dot(states[S], dlast)
            dn = 0 * dn
        """,
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the final stabiliser dropped",
        module="_mlstm.py",
        function="_backward",
        replace="dlast.m - _dot(states[S], dlast)",
        by="0 * dlast.m",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the stabiliser without what C and n owe to it",
        module="_mlstm.py",
        function="_backward",
        replace="dlast.m - _dot(states[S], dlast)",
        by="dlast.m",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the stabiliser given to the first write",
        module="_mlstm.py",
        function="_backward",
        replace="i[:, t] > a[:, t] + states[t].m",
        by="(attained_at == 0) & (i[:, t] > a[:, t] + states[t].m)",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the stabiliser given to the write at a tie",
        module="_mlstm.py",
        function="_backward",
        replace="i[:, t] > a[:, t] + states[t].m",
        by="i[:, t] >= a[:, t] + states[t].m",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the stabiliser misses the decays after its write",
        module="_mlstm.py",
        function="_backward",
        replace="_dot(states[t], MLSTMState(dC, dn, None)) + g * (attained_at < t + 1)",
        by="_dot(states[t], MLSTMState(dC, dn, None))",
    ),
    Mutant(
        op="mlstm",
        name="cotangent of the stabiliser misses its write",
        module="_mlstm.py",
        function="_backward",
        replace='np.einsum("bnk,bnk->bn", k[:, t], dk[:, t]) + g * (attained_at == t + 1)',
        by='np.einsum("bnk,bnk->bn", k[:, t], dk[:, t])',
    ),
    Mutant(
        op="mlstm",
        name="key's gradient misses the normaliser",
        module="_mlstm.py",
        function="_backward",
        replace='np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn',
        by='np.einsum("bnkv,bnv->bnk", dC, v[:, t])',
    ),
    Mutant(
        op="mlstm",
        name="forget gate's gradient misses the normaliser",
        module="_mlstm.py",
        function="_backward",
        replace="_dot(states[t], MLSTMState(dC, dn, None))",
        by="_dot(states[t], MLSTMState(dC, 0 * dn, None))",
    ),
    Mutant(
        op="mlstm",
        name="decay of the step before in the gradient",
        module="_mlstm.py",
        function="_backward",
        replace="stabilised_decay(a[:, t], states[t].m, m)",
        by="stabilised_decay(a[:, max(t - 1, 0)], states[t].m, m)",
    ),
    Mutant(
        op="mlstm",
        name="gradient does not cross step 512",
        module="_mlstm.py",
        function="_backward",
        replace='dq[:, t] = np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n',
        by="""
            dq[:, t] = np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n
            if t == 512:
                dC, dn = (0 * dC, 0 * dn)
        """,
    ),
    Mutant(
        op="mlstm",
        name="cotangent used as scratch space",
        module="_mlstm.py",
        function="mlstm_backward",
        replace="""
            if cu_seqlens is None:
                gradients, dinitial = whole(*arrays, state=state, dlast=dlast)
            else:
                gradients, dinitial = _each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)
        """,
        by="""
            if cu_seqlens is None:
                gradients, dinitial = whole(*arrays, state=state, dlast=dlast)
            else:
                gradients, dinitial = _each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)
            dh *= 2
        """,
    ),
    Mutant(
        op="mlstm",
        name="gradients of the initial state returned as zero",
        module="_mlstm.py",
        function="mlstm_backward",
        replace='{**result, "initial_state": dinitial}',
        by='{**result, "initial_state": MLSTMState(*(0 * part for part in dinitial))}',
    ),
    Mutant(
        op="mlstm",
        name="cotangents of the final state dropped where sequences are packed",
        module="_mlstm.py",
        function="mlstm_backward",
        replace="_each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)",
        by="""
            _each_sequence(
                whole, arrays, cu_seqlens, state=state, dlast=MLSTMState(*(0 * part for part in dlast))
            )
        """,
    ),
)
