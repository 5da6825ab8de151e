"""Faults of a single step of the mLSTM."""

from conformance.rows.row import changes

ROWS = changes("""
    @ mlstm_step _mlstm.py mlstm_step

    eps ignored
    - _read(q, state, eps)
    + _read(q, state, 0.0)

    reads before it writes
    - state = _write(k, v, i, log_sigmoid(f), state)
    - return (_read(q, state, eps), state)
    + h = _read(q, state, eps)
    + state = _write(k, v, i, log_sigmoid(f), state)
    + return (h, state)

    forget gate taken to be a logarithm already, f for log σ(f)
    - log_sigmoid(f)
    + f

    ~ log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0
    - log_sigmoid(f)
    + np.log(1 / (1 + np.exp(-f.astype(np.float32)))).astype(np.float64)

    returns the stabiliser of the state before
    - _write(k, v, i, log_sigmoid(f), state)
    + _write(k, v, i, log_sigmoid(f), state)._replace(m=state.m)

    state written in place
    - state = MLSTMState(*(float64(part) for part in state))
    - state = _write(k, v, i, log_sigmoid(f), state)
    + given = state
    + ...
    + for part, after in zip(given, state):
    +     part[...] = after

    state handed on in float32
    - (_read(q, state, eps), state)
    + (_read(q, state, eps), MLSTMState(*(part.astype(np.float32) for part in state)))

    @ mlstm_step _mlstm.py mlstm_step_backward

    cotangents of the state dropped
    - mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)
    + mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=None, eps=eps)

    eps dropped in the gradient
    - mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)
    + mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate)

    gradient of the normaliser's memory zero
    - dinitial = gradients.pop("initial_state")
    + ...
    + dinitial = dinitial._replace(n=0 * dinitial.n)

    gradient of the initial stabiliser misses what C and n owe to it
    - dinitial = gradients.pop("initial_state")
    + ...
    + dinitial = dinitial._replace(m=0 * dinitial.m if dstate is None else dstate[2] * (i <= f))

    @ mlstm_step _gates.py stabilised_decay

    the rounding of a huge stabiliser makes the memory grow
    - np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))
    + decay
""")
