"""Faults of a single step of the mLSTM."""

from conformance.mutants._mutant import Mutant

_STATE = "    state = MLSTMState(*(float64(part) for part in state))\n"
_WRITE = "    state = _write(k, v, i, log_sigmoid(f), state)\n"
_READ = "    return _read(q, state, eps), state\n"
_BACKWARD = "mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)"
_POP = '    dinitial = gradients.pop("initial_state")\n'

ROWS = (
    Mutant("mlstm_step", "eps ignored", "_mlstm.py", _READ, _READ.replace("eps", "0.0")),
    Mutant(
        "mlstm_step",
        "reads before it writes",
        "_mlstm.py",
        _WRITE + _READ,
        "    h = _read(q, state, eps)\n" + _WRITE + "    return h, state\n",
    ),
    Mutant(
        "mlstm_step",
        "forget gate taken to be a logarithm already",
        "_mlstm.py",
        _WRITE,
        _WRITE.replace("log_sigmoid(f)", "np.minimum(f, 0.0)"),
    ),
    Mutant(
        "mlstm_step",
        "returns the stabiliser of the state before",
        "_mlstm.py",
        _WRITE,
        _WRITE.replace("state)\n", "state)._replace(m=state.m)\n"),
    ),
    Mutant(
        "mlstm_step",
        "state written in place",
        "_mlstm.py",
        _STATE + _WRITE,
        "    given = state\n"
        + _STATE
        + _WRITE
        + "    for part, after in zip(given, state):\n        part[...] = after\n",
    ),
    Mutant(
        "mlstm_step",
        "state handed on in float32",
        "_mlstm.py",
        _READ,
        _READ.replace(", state\n", ", MLSTMState(*(part.astype(np.float32) for part in state))\n"),
    ),
    Mutant(
        "mlstm_step",
        "cotangents of the state dropped",
        "_mlstm.py",
        _BACKWARD,
        _BACKWARD.replace("dstate=dstate", "dstate=None"),
    ),
    Mutant("mlstm_step", "eps dropped in the gradient", "_mlstm.py", _BACKWARD, _BACKWARD.replace(", eps=eps", "")),
    Mutant(
        "mlstm_step",
        "gradient of the normaliser's memory zero",
        "_mlstm.py",
        _POP,
        _POP + "    dinitial = dinitial._replace(n=0 * dinitial.n)\n",
    ),
    Mutant(
        "mlstm_step",
        "gradient of the initial stabiliser misses what C and n owe to it",
        "_mlstm.py",
        _POP,
        _POP + "    dinitial = dinitial._replace(m=0 * dinitial.m if dstate is None else dstate[2] * (i <= f))\n",
    ),
)
