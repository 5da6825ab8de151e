"""Faults of the sLSTM: its gates, its stabiliser, its memory, its gradient, and a single step of it."""

from conformance.rows.row import changes

ROWS = changes("""
    @ slstm _slstm.py _step

    empty memory of m = 0 once any unit has written
    - m_new = np.maximum(a + m, u.i)
    + m_new = u.i if np.all(n == 0) else np.maximum(a + np.where(n == 0, 0.0, m), u.i)

    forget gate taken to be a logarithm already, f for log σ(f)
    - log_sigmoid(u.f)
    + u.f

    σ(f) as the log of the forget gate, not log σ(f)
    - log_sigmoid(u.f)
    + sigmoid(u.f)

    ~ log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0
    - log_sigmoid(u.f)
    + np.log(1 / (1 + np.exp(-u.f.astype(np.float32)))).astype(np.float64)

    forget gate's gradient times sigmoid of the gate
    - sigmoid(-u.f)
    + sigmoid(u.f)

    σ(i) as the input gate, not exp(i)
    - u = _Four(*(x_g + _times(h, W) for x_g, W in zip(x, weights, strict=True)))
    + ...
    + u = u._replace(i=log_sigmoid(u.i))

    input and forget gate swapped
    - u = _Four(*(x_g + _times(h, W) for x_g, W in zip(x, weights, strict=True)))
    + ...
    + u = u._replace(i=u.f, f=u.i)

    output gate left out
    - o * _quotient(c, n)
    + _quotient(c, n)

    exponential forget gate computed as a sigmoid one
    - forget_gate == "exp"
    + False

    normaliser without its decay
    - c, n = decay * c + gain * z, decay * n + gain
    + c, n = decay * c + gain * z, n + gain

    divisor of at least 1, c / max(n, 1)
    - o * _quotient(c, n)
    + o * _quotient(c, np.maximum(n, 1.0) * (n != 0))

    output gate inside the tanh
    - o * _quotient(c, n)
    + np.tanh(o * _quotient(c, n))

    no tanh on the cell input
    - np.tanh(u.z)
    + u.z

    output gate reads the previous memory
    - o * _quotient(c, n)
    + o * _quotient(state.c, np.where(state.n == 0, n, state.n))

    a tie is a write
    - u.i > a + m
    + u.i >= a + m

    @ slstm _slstm.py _quotient

    normaliser of nothing as the smallest number
    - np.divide(x, n, out=np.zeros(x.shape), where=n != 0)
    + x / (n + np.finfo(np.float64).tiny)

    @ slstm _slstm.py _times

    weights transposed
    - np.einsum("bni,nij->bnj", h, W)
    + np.einsum("bni,nji->bnj", h, W)

    @ slstm _slstm.py slstm

    initial state ignored where sequences are packed
    - state = _initial_state(call, initial_state)
    + state = _initial_state(call, initial_state if cu_seqlens is None else None)

    state is not reset between packed sequences
    - before = SLSTMState(*(part[b] for part in state))
    + before = SLSTMState(*(part[b] for part in state))
    + if b.start:
    +     before = SLSTMState(*(part[b.start - 1 : b.start] for part in last))

    an empty packed sequence takes its neighbour's state
    - before = SLSTMState(*(part[b] for part in state))
    + ...
    + if b.start and not steps:
    +     before = SLSTMState(*(part[b.start - 1 : b.start] for part in last))

    initial state ignored
    - _initial_state(call, initial_state)
    + _initial_state(call, None)

    ~ state rounded to bfloat16 at each step
    - before = _step(inputs.at(t), weights, before, forget_gate).state
    + ...
    + rounded = ((2**45 + 1) * x - ((2**45 + 1) * x - x) for x in before)
    + before = SLSTMState(*rounded)._replace(m=before.m)

    ~ state rounded to float16 at each step
    - before = _step(inputs.at(t), weights, before, forget_gate).state
    + ...
    + rounded = (x.astype(np.float16).astype(np.float64) for x in before)
    + before = SLSTMState(*rounded)._replace(m=before.m)

    @ slstm _slstm.py _initial_state

    begins with m = 0, not −∞
    - m - np.inf
    + m

    @ slstm _slstm.py slstm_backward

    clipped after the cotangent of the output is added
    - np.clip(dh_next, -bound, bound) + upstream[t]
    + np.clip(dh_next + upstream[t], -bound, bound)

    NaN clipped to the bound
    - np.clip(dh_next, -bound, bound)
    + np.fmax(np.fmin(dh_next, bound), -bound)

    clipping accepted and ignored
    - np.inf if gradient_clipping is None else abs(gradient_clipping)
    + np.inf

    cotangents of the final state dropped
    - dstate is None
    + True

    path through the recurrent weights left out
    - sum(_times(du_x, W.mT) for du_x, W in zip(du, weights, strict=True))
    + np.zeros(dh_t.shape)

    cotangent of the final m dropped
    - dm - before.c * dc - before.n * dn
    + -before.c * dc - before.n * dn

    the stabiliser's share of the scaled memory dropped
    - dm - before.c * dc - before.n * dn
    + dm

    gradient of the final m goes to the last write
    - attained_at = np.where(done[-1][1].writes_last, number, attained_at)
    + attained_at = number

    gradient of the normaliser dropped
    - dn = dn - _quotient(dh_t * after.h, after.n)
    +

    gradient of the initial stabiliser misses what c and n owe to it
    - state.c[b] * dc + state.n[b] * dn + g * (attained_at == 0)
    + g * (attained_at == 0)

    output gate's slope dropped
    - dh_t * _quotient(after.c, after.n) * step.o * (1 - step.o)
    + dh_t * _quotient(after.c, after.n) * step.o

    recurrent gradient through the output gate dropped
    - dh_next = sum(_times(du_x, W.mT) for du_x, W in zip(du, weights, strict=True))
    + dh_next = sum(_times(du_x, W.mT) for du_x, W in zip(du[:3], weights[:3], strict=True))

    @ slstm_step _slstm.py slstm_step

    exponential forget gate ignored
    - _step(inputs, weights, SLSTMState(*(float64(part) for part in state)), forget_gate)
    + _step(inputs, weights, SLSTMState(*(float64(part) for part in state)), "sigmoid")

    state handed on in float32
    - (after.h.copy(), after)
    + (after.h.copy(), SLSTMState(*(part.astype(np.float32) for part in after)))

    returns the stabiliser of the state before
    - (after.h.copy(), after)
    + (after.h.copy(), after._replace(m=float64(state.m)))

    @ slstm_step _slstm.py slstm_step_backward

    cotangents of the state dropped
    - slstm_backward(*arrays, initial_state=state, forget_gate=forget_gate, dh=dh[:, None], dstate=dstate)
    + slstm_backward(*arrays, initial_state=state, forget_gate=forget_gate, dh=dh[:, None])

    exponential forget gate ignored in the gradient
    - slstm_backward(*arrays, initial_state=state, forget_gate=forget_gate, dh=dh[:, None], dstate=dstate)
    + slstm_backward(*arrays, initial_state=state, dh=dh[:, None], dstate=dstate)
""")
