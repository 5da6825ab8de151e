"""The changed lines of the specification, in the order of the operations.

Each row is a fault that somebody might make. Planted in a copy of the specification, it scores the laws: one of them
must break. Computed on the arguments of a call that a target got wrong, it names what the target computes. Rows that
are right for everyone, other spellings and orders, are in `correct`: no law may refuse them.
"""

from conformance.rows import (
    accumulate,
    calls,
    decay,
    fwbw,
    fwbw_backward,
    gru,
    gru_backward,
    layers,
    mlstm,
    mlstm_backward,
    mlstm_chunkwise,
    mlstm_sharded,
    mlstm_step,
    scan,
    sharding,
    sizes,
    slstm,
)
from conformance.rows.row import Row

_FILES = (
    scan,
    decay,
    mlstm,
    mlstm_chunkwise,
    mlstm_backward,
    mlstm_sharded,
    mlstm_step,
    fwbw,
    fwbw_backward,
    gru,
    gru_backward,
    slstm,
    accumulate,
    sharding,
    layers,
    calls,
    sizes,
)

ROWS: tuple[Row, ...] = tuple(row for file in _FILES for row in file.ROWS)
