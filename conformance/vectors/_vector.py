"""One test vector: a call, the oracle's answer, and the error that each element of an answer may have.

Laws draw their cases, but people read a set, so its cases are listed in the record of each operation. Their values come
from the seed.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import LARGEST, Array
from conformance.cases import FwbwCase
from conformance.operations import OPERATIONS
from conformance.tolerance import budget
from conformance.tolerance.budget import Expected
from conformance.tolerance.designs import AnyDesign


@dataclass(frozen=True)
class Answer:
    """The correct values of an output or a gradient.

    Attributes:
        values: the oracle's values, in float64.
        dtype: the dtype in which an implementation returns it.
        allowed: the error that each element may have; 0 where ``values`` is infinite, because only the same value
            passes.
    """

    values: np.ndarray
    dtype: str
    allowed: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A call with its expected answers.

    Attributes:
        outputs: by name; C and n are in units of the expected m.
        gradients: by the name of the argument.
        kinks: elements at a kink, where the gradient of either side is within the allowed error.
    """

    operation: str
    dtype: str
    index: int
    case: Any
    call: Call
    outputs: dict[str, Answer]
    gradients: dict[str, Answer]
    kinks: int

    @property
    def id(self) -> str:
        return f"{self.operation}.{self.dtype}.{self.index:03d}"

    @property
    def representable(self) -> bool:
        """Whether every finite answer, with its allowed error, is representable in the dtype of its result."""
        answers = (*self.outputs.values(), *self.gradients.values())
        return all(_largest(answer) <= LARGEST[answer.dtype] for answer in answers)


def vector(operation: str, dtype: str, index: int, seed: int, max_steps: int) -> Vector:
    """The vector with this index; its values are drawn again until all answers are representable in their dtypes.

    The operation's listed cases are used repeatedly, each time with new values and at most ``max_steps`` steps.
    """
    listed, redrawn = OPERATIONS[operation].vector_cases, 0
    while True:
        salt = zlib.crc32(f"{seed}/{operation}/{dtype}/{index}/{redrawn}".encode())
        found = _of_case(operation, dtype, index, _seeded(listed[index % len(listed)], salt, max_steps))
        if found.representable:
            return found
        redrawn += 1


def _seeded(case: Any, seed: int, max_steps: int) -> Any:
    if isinstance(case, FwbwCase):
        return replace(case, inner=_seeded(case.inner, seed, max_steps))
    lengths = getattr(case, "lengths", None)
    if lengths is not None:
        return replace(case, seed=seed, lengths=tuple(min(length, max_steps) for length in lengths))
    return replace(case, seed=seed, S=min(case.S, max_steps))


def _largest(answer: Answer) -> float:
    finite = np.isfinite(answer.values)
    return float(np.where(finite, np.abs(answer.values) + answer.allowed, 0.0).max(initial=0.0))


def _of_case(name: str, dtype: str, index: int, case: Any) -> Vector:
    operation = OPERATIONS[name]
    call, precision = operation.call_of(case, dtype), AnyDesign(dtype, case.steps)
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    value = operation.value(arrays, call.options, precision)
    gradient = operation.gradient(arrays, call.options, cotangents, precision)

    def answers(expected: Expected, like: Mapping[str, Array]) -> dict[str, Answer]:
        found = {}
        for name, x in like.items():
            values = expected.values[name]
            with np.errstate(invalid="ignore"):
                allowed = budget.allowed(values, expected.slack[name], precision, x.dtype)
            found[name] = Answer(values, x.dtype, np.where(np.isfinite(values), allowed, 0.0))
        return found

    return Vector(
        operation=name,
        dtype=dtype,
        index=index,
        case=case,
        call=call,
        outputs=answers(value, call.cotangents),
        gradients=answers(gradient, {name: call.arrays[name] for name in call.primals}),
        kinks=gradient.kinks,
    )
