"""Faults of the mLSTM's gradient."""

from conformance.rows.row import changes

ROWS = changes("""
    @ mlstm _mlstm.py _backward

    normaliser held constant in the gradient
    - np.where(np.abs(nu) > floor, np.sign(nu), 0.0)
    + 0.0

    normaliser's gradient without its sign
    - np.where(np.abs(nu) > floor, np.sign(nu), 0.0)
    + np.abs(nu) > floor

    normaliser's gradient below its floor too
    - np.where(np.abs(nu) > floor, np.sign(nu), 0.0)
    + np.sign(nu)

    normaliser's gradient reaches the query alone
    - dn += dnu[..., None] * q_hat[:, t]

    normaliser's gradient does not reach the query
    - np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n
    + np.einsum("bnkv,bnv->bnk", C, delta)

    eps dropped in the gradient
    - np.maximum(np.abs(nu), floor) + eps
    + np.maximum(np.abs(nu), floor)

    1/sqrt(K) twice in the gradient of q
    - dq / np.sqrt(q.shape[-1])
    + dq / q.shape[-1]

    1/sqrt(K) left out of the gradient of q
    - dq / np.sqrt(q.shape[-1])
    + dq

    1/sqrt(K) too many in the forget gate's gradient
    - da * sigmoid(-f)
    + da / np.sqrt(q.shape[-1]) * sigmoid(-f)

    forget gate's gradient times sigmoid of the gate
    - -f
    + f

    forget gate's gradient is a sum over the whole sequence that cancels
    - dm = _dot(state, MLSTMState(dC, dn, None)) + g * (attained_at == 0)
    + ...
    + flow = (q_hat * dq).sum(axis=-1) - (k * dk).sum(axis=-1)
    + later = np.arange(1, S + 1)[:, None] > attained_at[:, None]
    + da = (
    +     np.cumsum(flow[:, ::-1], axis=1)[:, ::-1]
    +     + _dot(states[S], dlast)[:, None]
    +     + g[:, None] * later
    + )

    gradient of the initial stabiliser zero
    - MLSTMState(dC, dn, dm)
    + MLSTMState(dC, dn, 0 * dm)

    gradient of k in float32
    - (dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f))
    + (dq / np.sqrt(q.shape[-1]), dk.astype(np.float32), dv, di, da * sigmoid(-f))

    @ mlstm _mlstm.py mlstm_backward

    cotangents of the final state dropped
    - dstate is None
    + True

    @ mlstm _mlstm.py _backward

    cotangent of the final normaliser dropped
    - g = dlast.m - _dot(states[S], dlast)
    + ...
    + dn = 0 * dn

    cotangent of the final C dropped
    - g = dlast.m - _dot(states[S], dlast)
    + ...
    + dC = 0 * dC

    cotangent of the final m dropped
    - dlast.m - _dot(states[S], dlast)
    + -_dot(states[S], dlast)

    final m held constant in the gradient
    - dlast.m - _dot(states[S], dlast)
    + 0 * dlast.m

    cotangent of the stabiliser without what C and n owe to it
    - dlast.m - _dot(states[S], dlast)
    + dlast.m

    cotangent of the stabiliser given to the first write
    - i[:, t] > a[:, t] + states[t].m
    + (attained_at == 0) & (i[:, t] > a[:, t] + states[t].m)

    cotangent of the stabiliser given to the write at a tie
    - i[:, t] > a[:, t] + states[t].m
    + i[:, t] >= a[:, t] + states[t].m

    cotangent of the stabiliser misses the decays after its write
    - _dot(states[t], MLSTMState(dC, dn, None)) + g * (attained_at < t + 1)
    + _dot(states[t], MLSTMState(dC, dn, None))

    cotangent of the stabiliser misses its write
    - np.einsum("bnk,bnk->bn", k[:, t], dk[:, t]) + g * (attained_at == t + 1)
    + np.einsum("bnk,bnk->bn", k[:, t], dk[:, t])

    key's gradient misses the normaliser
    - np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn
    + np.einsum("bnkv,bnv->bnk", dC, v[:, t])

    forget gate's gradient misses the normaliser
    - _dot(states[t], MLSTMState(dC, dn, None))
    + _dot(states[t], MLSTMState(dC, 0 * dn, None))

    decay of the step before in the gradient
    - stabilised_decay(a[:, t], states[t].m, m)
    + stabilised_decay(a[:, max(t - 1, 0)], states[t].m, m)

    gradient does not cross step 512
    - dq[:, t] = np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n
    + ...
    + if t == 512:
    +     dC, dn = (0 * dC, 0 * dn)

    @ mlstm _mlstm.py mlstm_backward

    cotangent used as scratch space
    - if cu_seqlens is None:
    -     gradients, dinitial = whole(*arrays, state=state, dlast=dlast)
    - else:
    -     gradients, dinitial = _each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)
    + ...
    + dh *= 2

    gradients of the initial state returned as zero
    - {**result, "initial_state": dinitial}
    + {**result, "initial_state": MLSTMState(*(0 * part for part in dinitial))}

    cotangents of the final state dropped where sequences are packed
    - _each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)
    + _each_sequence(
    +     whole, arrays, cu_seqlens, state=state, dlast=MLSTMState(*(0 * part for part in dlast))
    + )
""")
