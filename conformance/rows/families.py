"""Faults with a number: each is planted with one, and looked for with the usual ones and with one that is measured."""

from conformance.rows.row import Row, changes

GATES = (10, 15, 20, 30, 50, 100)
BLOCKS = (4, 8, 16, 32, 64, 128)

_CLAMPED = """
    @ {op} {module} {function}

    log σ(f) clamped at −{least:g}
    - log_sigmoid({f})
    + np.maximum(log_sigmoid({f}), -{least:g})
"""
_PLACES = {
    "mlstm": {"module": "_mlstm.py", "function": "mlstm_recurrent", "f": "f"},
    "mlstm_step": {"module": "_mlstm.py", "function": "mlstm_step", "f": "f"},
    "fwbw": {"module": "_fwbw.py", "function": "_chunk_forward", "f": "context.f[:, chunk]"},
    "slstm": {"module": "_slstm.py", "function": "_step", "f": "u.f"},
    "slstm_step": {"module": "_slstm.py", "function": "_step", "f": "u.f"},
}
_PADDED = """
    @ {op} _mlstm.py _read

    1/√K of K padded to a multiple of {block}
    - np.sqrt(q.shape[-1])
    + np.sqrt(-(-q.shape[-1] // {block}) * {block})
"""
_DROPPED = """
    @ {op} {module} {function}

    last partial chunk dropped (chunks of {block}) in sequences of more than {above} steps
    - {begin}
    + ...
    + kept = len(steps) - len(steps) % {block} if len(steps) > {above} else len(steps)
    + for t in steps[kept:]:
    +     {output}[t] = 0.0
    + steps = steps[:kept]
"""
_LOOPS = {
    "gru": {"module": "_gru.py", "begin": "h = h0[b]", "output": "y"},
    "slstm": {"module": "_slstm.py", "begin": "before = SLSTMState(*(part[b] for part in state))", "output": "h"},
}
_DROPPED_OF_MLSTM = """
    @ mlstm _mlstm.py mlstm_recurrent

    last partial chunk dropped (chunks of {block}) in sequences of more than {above} steps
    - h = np.empty(v.shape)
    - for t in range(q.shape[1]):
    -     state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
    -     h[:, t] = _read(q[:, t], state, eps)
    + h, S = np.zeros(v.shape), q.shape[1]
    + for t in range(S - S % {block} if S > {above} else S):
    +     state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
    +     h[:, t] = _read(q[:, t], state, eps)
"""


def clamped(least: float) -> tuple[Row, ...]:
    """The log of the forget gate is at least ``−least``."""
    return tuple(row for op, place in _PLACES.items() for row in changes(_CLAMPED.format(op=op, least=least, **place)))


def padded(block: int) -> tuple[Row, ...]:
    """The scale of queries is that of a padded K."""
    return tuple(row for op in ("mlstm", "mlstm_step") for row in changes(_PADDED.format(op=op, block=block)))


def dropped(block: int, above: int) -> tuple[Row, ...]:
    """Steps that do not fill a chunk are left out."""
    numbers = {"block": block, "above": above}
    loops = (changes(_DROPPED.format(op=op, function=op, **numbers, **place)) for op, place in _LOOPS.items())
    return (*changes(_DROPPED_OF_MLSTM.format(**numbers)), *(row for rows in loops for row in rows))


USUAL = (*(row for least in GATES for row in clamped(least)), *(row for block in BLOCKS for row in padded(block)))
ROWS = tuple(row for row in (*clamped(30), *padded(16)) if row.op in ("mlstm", "slstm"))
