"""The operations of the contract, each described once: one file per operation, or for a few similar ones.

Laws, calls, scripts of failures, test vectors and the names that the command line knows are derived from these records,
in this order.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.operations import (
    decay,
    fwbw,
    gru,
    linear_attention,
    mlstm,
    scan,
    slstm,
    stated,
)
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Backward, Option, Output, Public, StateTuple, Strategy
from conformance.oracle import rescaled

FILES: tuple[ModuleType, ...] = (
    scan,
    decay,
    mlstm,
    fwbw,
    gru,
    slstm,
    linear_attention,
)
RECORDS: tuple[Public, ...] = tuple(record for file in FILES for record in file.RECORDS)

OPERATIONS = {record.name: record for record in RECORDS if isinstance(record, Operation)}
"""The operations that map arrays to arrays, by public name."""

BY_LAWS = {record.about: record for record in OPERATIONS.values()}
"""The same operations by the name of their laws."""

HELPERS = tuple(dict.fromkeys(helper for record in RECORDS for helper in record.helpers))
"""Public types that the functions above take or return, and alternative forms; a target need not have them."""

ABOUT = list(dict.fromkeys(record.about for record in RECORDS if record.about))
"""The subjects of laws, in the order in which they are tried and listed: the names of ``--op``."""

_LAWS = {path.stem for path in (Path(__file__).parents[1] / "laws").iterdir()}
LAW_MODULES = tuple(name for file in FILES if (name := file.__name__.rpartition(".")[2]) in _LAWS)
"""The files of laws that do not follow from a record, with the same names as those of the records."""

LOG_SCALE = {
    output.name: output.log_scale for record in OPERATIONS.values() for output in record.outputs if output.log_scale
}
"""By state: the state that is the logarithm of its unit. The name of a state means the same in every operation."""


def functions() -> tuple[str, ...]:
    """The public functions and their backwards, and the types and forms that go with them."""
    return (*OPERATIONS, *(f"{name}_backward" for name in OPERATIONS), *HELPERS)


def add_specification(path: Path) -> list[str]:
    """Add the recurrences that a file states, and return their names.

    Raises:
        UsageError: it states none, or one that is not right, or whose name an operation has.
    """
    if path in _added:
        return _added[path]
    found = stated.read(path)
    for operation in found:
        if operation.name in OPERATIONS:
            raise UsageError(f"--spec {path}: there is an operation {operation.name} already; choose another name")
        OPERATIONS[operation.name] = BY_LAWS[operation.about] = operation
        ABOUT.append(operation.about)
    _added[path] = [operation.name for operation in found]
    return _added[path]


def specification_of(op: str) -> str:
    """The file that states a recurrence; empty if it is one of gatespec's operations."""
    return next((str(path.resolve()) for path, names in _added.items() if op in names), "")


_added: dict[Path, list[str]] = {}


def in_units_of(scale: np.ndarray, name: str, results: Mapping[str, Array]) -> Array:
    """A scaled state among the results of a call, in units of exp(scale); unchanged if the shapes do not fit."""
    part, own = results[name], results[LOG_SCALE[name]]
    if own.shape != scale.shape or part.shape[: scale.ndim] != scale.shape:
        return part
    return replace(part, values=rescaled(part.values, own.values, scale))


def in_expected_units(name: str, results: Mapping[str, Array], expected: Mapping[str, np.ndarray]) -> Array:
    """A result of a call; a scaled state in the units of the expected one."""
    scale = LOG_SCALE.get(name)
    if scale is None or scale not in results or scale not in expected:
        return results[name]
    return in_units_of(expected[scale], name, results)


__all__ = [
    "ABOUT",
    "Argument",
    "BY_LAWS",
    "Backward",
    "FILES",
    "HELPERS",
    "LAW_MODULES",
    "LOG_SCALE",
    "OPERATIONS",
    "Operation",
    "Option",
    "Output",
    "Public",
    "RECORDS",
    "StateTuple",
    "Strategy",
    "add_specification",
    "functions",
    "specification_of",
    "in_expected_units",
    "in_units_of",
]
