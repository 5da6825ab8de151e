"""Faults of a single step of the mLSTM."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="mlstm_step",
        name="eps ignored",
        module="_mlstm.py",
        function="mlstm_step",
        replace="_read(q, state, eps)",
        by="_read(q, state, 0.0)",
    ),
    Mutant(
        op="mlstm_step",
        name="reads before it writes",
        module="_mlstm.py",
        function="mlstm_step",
        replace="""
            state = _write(k, v, i, log_sigmoid(f), state)
            return (_read(q, state, eps), state)
        """,
        by="""
            h = _read(q, state, eps)
            state = _write(k, v, i, log_sigmoid(f), state)
            return (h, state)
        """,
    ),
    Mutant(
        op="mlstm_step",
        name="forget gate taken to be a logarithm already",
        module="_mlstm.py",
        function="mlstm_step",
        replace="log_sigmoid(f)",
        by="np.minimum(f, 0.0)",
    ),
    Mutant(
        op="mlstm_step",
        name="returns the stabiliser of the state before",
        module="_mlstm.py",
        function="mlstm_step",
        replace="_write(k, v, i, log_sigmoid(f), state)",
        by="_write(k, v, i, log_sigmoid(f), state)._replace(m=state.m)",
    ),
    Mutant(
        op="mlstm_step",
        name="state written in place",
        module="_mlstm.py",
        function="mlstm_step",
        replace="""
            state = MLSTMState(*(float64(part) for part in state))
            state = _write(k, v, i, log_sigmoid(f), state)
        """,
        by="""
            given = state
            state = MLSTMState(*(float64(part) for part in state))
            state = _write(k, v, i, log_sigmoid(f), state)
            for part, after in zip(given, state):
                part[...] = after
        """,
    ),
    Mutant(
        op="mlstm_step",
        name="state handed on in float32",
        module="_mlstm.py",
        function="mlstm_step",
        replace="(_read(q, state, eps), state)",
        by="(_read(q, state, eps), MLSTMState(*(part.astype(np.float32) for part in state)))",
    ),
    Mutant(
        op="mlstm_step",
        name="cotangents of the state dropped",
        module="_mlstm.py",
        function="mlstm_step_backward",
        replace="mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)",
        by="mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=None, eps=eps)",
    ),
    Mutant(
        op="mlstm_step",
        name="eps dropped in the gradient",
        module="_mlstm.py",
        function="mlstm_step_backward",
        replace="mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)",
        by="mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate)",
    ),
    Mutant(
        op="mlstm_step",
        name="gradient of the normaliser's memory zero",
        module="_mlstm.py",
        function="mlstm_step_backward",
        replace='dinitial = gradients.pop("initial_state")',
        by="""
            dinitial = gradients.pop("initial_state")
            dinitial = dinitial._replace(n=0 * dinitial.n)
        """,
    ),
    Mutant(
        op="mlstm_step",
        name="gradient of the initial stabiliser misses what C and n owe to it",
        module="_mlstm.py",
        function="mlstm_step_backward",
        replace='dinitial = gradients.pop("initial_state")',
        by="""
            dinitial = gradients.pop("initial_state")
            dinitial = dinitial._replace(m=0 * dinitial.m if dstate is None else dstate[2] * (i <= f))
        """,
    ),
    Mutant(
        op="mlstm_step",
        name="the rounding of a huge stabiliser makes the memory grow",
        module="_gates.py",
        function="stabilised_decay",
        replace="np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))",
        by="decay",
    ),
)
