"""One test vector: a call, what the oracle says of it, and what each element of an answer may be off by."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance import budget
from conformance.budget import Precision
from conformance.dtypes import FLOATING, LARGEST, Array
from conformance.vectors._calls import CALLS
from conformance.vectors._rows import case_of


@dataclass(frozen=True)
class Answer:
    """What an output or a gradient ought to be.

    Attributes:
        values: the oracle's, in float64.
        dtype: in which an implementation gives it back.
        allowed: what each element may be off by; 0 where ``values`` is infinite, for only the same will do.
    """

    values: np.ndarray
    dtype: str
    allowed: np.ndarray


@dataclass(frozen=True)
class Vector:
    """A call with its expected answers.

    Attributes:
        arguments: arrays, in the order of the call.
        options: arguments that are no arrays.
        cotangents: of the outputs, by their names.
        outputs: by name; C and n are in units of the expected m.
        gradients: by the name of the argument.
        kinks: elements at a kink, where the gradient of either side is within what is allowed.
    """

    operation: str
    dtype: str
    index: int
    case: Any
    arguments: dict[str, Array]
    options: dict[str, Any]
    cotangents: dict[str, Array]
    outputs: dict[str, Answer]
    gradients: dict[str, Answer]
    kinks: int

    @property
    def id(self) -> str:
        return f"{self.operation}.{self.dtype}.{self.index:03d}"

    @property
    def representable(self) -> bool:
        """Whether no finite answer, off by what it may be, is too large for the dtype in which it comes back."""
        answers = (*self.outputs.values(), *self.gradients.values())
        return all(_largest(answer) <= LARGEST[answer.dtype] for answer in answers)


def vector(operation: str, dtype: str, index: int, seed: int, max_steps: int) -> Vector:
    """The vector of that index; its values are drawn again until all answers are representable in their dtypes."""
    redrawn = 0
    while True:
        found = _of_case(operation, dtype, index, case_of(operation, dtype, index, seed, max_steps, redrawn))
        if found.representable:
            return found
        redrawn += 1


def _largest(answer: Answer) -> float:
    finite = np.isfinite(answer.values)
    return float(np.where(finite, np.abs(answer.values) + answer.allowed, 0.0).max(initial=0.0))


def _of_case(operation: str, dtype: str, index: int, case: Any) -> Vector:
    call = CALLS[operation](operation, case, dtype)
    precision = Precision(dtype, case.steps)

    def answer(values: np.ndarray, slack: np.ndarray, returned: str) -> Answer:
        with np.errstate(invalid="ignore"):
            allowed = budget.allowed(values, slack, precision, returned)
        return Answer(values, returned, np.where(np.isfinite(values), allowed, 0.0))

    outputs = {
        name: answer(call.value.values[name], call.value.slack[name], cotangent.dtype)
        for name, cotangent in call.cotangents.items()
    }
    gradients = {
        name: answer(call.gradient.values[name], call.gradient.slack[name], x.dtype)
        for name, x in call.arguments.items()
        if x.dtype in FLOATING
    }
    return Vector(
        operation,
        dtype,
        index,
        case,
        call.arguments,
        call.options,
        call.cotangents,
        outputs,
        gradients,
        call.gradient.kinks,
    )
