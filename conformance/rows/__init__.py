"""The changed lines of the specification, one file for each operation or part of one.

Each row is a fault that somebody might make. Planted in a copy of the specification, it scores the laws: one of them
must break. Computed on the arguments of a call that a target got wrong, it names what the target computes. Rows that
are right for everyone, other spellings and orders, are in `correct`: no law may refuse them. What no law refuses a
stranger is in `foreign`. What only a tape follows is in `taped`; `families` has faults with a number.

To round x to bfloat16, rows compute ``c - (c - x)`` with ``c = (2**45 + 1) * x``: of the 53 digits of a float64 it
leaves 8 (Dekker 1971), and the tape passes its gradient on as it is.
"""

import importlib
import pkgutil

from conformance.rows.row import Row

_FILES = [name for _, name, _ in pkgutil.iter_modules(__path__) if name not in ("row", "correct", "foreign", "taped")]

ROWS: tuple[Row, ...] = tuple(row for name in _FILES for row in importlib.import_module(f"{__name__}.{name}").ROWS)
