"""The operations of the contract, each described once: one file per operation, or for a few similar ones.

Laws, calls, scripts of failures, test vectors and the names that the command line knows are derived from these records,
in this order.
"""

from types import ModuleType

from conformance.operations import (
    decay,
    fwbw,
    gru,
    mlstm,
    mlstm_step,
    scan,
)
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Backward, Option, Output, Public, StateTuple, Strategy

FILES: tuple[ModuleType, ...] = (
    scan,
    decay,
    mlstm,
    mlstm_step,
    fwbw,
    gru,
)
RECORDS: tuple[Public, ...] = tuple(record for file in FILES for record in file.RECORDS)

OPERATIONS = {record.name: record for record in RECORDS if isinstance(record, Operation)}
"""The operations that map arrays to arrays, by public name."""

BY_LAWS = {record.about: record for record in OPERATIONS.values()}
"""The same operations by the name of their laws."""

HELPERS = tuple(dict.fromkeys(helper for record in RECORDS for helper in record.helpers))
"""Public types that the functions above take or return, and alternative forms; a target need not have them."""

ABOUT = tuple(dict.fromkeys(record.about for record in RECORDS if record.about))
"""The subjects of laws, in the order in which they are tried and listed: the names of ``--op``."""

LAW_MODULES = tuple(file.__name__.rpartition(".")[2] for file in FILES if any(record.about for record in file.RECORDS))
"""The files of laws, with the same names as those of the records."""

PUBLIC = tuple(OPERATIONS)
BACKWARDS = tuple(f"{name}_backward" for name in OPERATIONS)

__all__ = [
    "ABOUT",
    "Argument",
    "BACKWARDS",
    "BY_LAWS",
    "Backward",
    "FILES",
    "HELPERS",
    "LAW_MODULES",
    "OPERATIONS",
    "Operation",
    "Option",
    "Output",
    "PUBLIC",
    "Public",
    "RECORDS",
    "StateTuple",
    "Strategy",
]
