"""Whether a fault can be seen at all in a setting: told by brute force, without any law or tolerance of the suite."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import LONG_STEPS, USUAL, Limits, MLSTMCase, SumCase
from conformance.features import without_decisions
from conformance.frameworks.implementation import Implementation
from conformance.judge.draws import sampled
from conformance.laws import FEW
from conformance.operations import OPERATIONS
from conformance.operations.gru import gru_case
from conformance.rows.row import Row
from tests.suite.mutants.planting import NAME, TENSOR_MODULES, TENSOR_OPERATIONS, TENSOR_STEPS, Setting, planted

CASES = 150
DIFFERENCE = 1e-9
"""Relative to the largest element of an array: far above float64 rounding, far below any fault worth a name."""

ROUNDING = 1e-13
"""The rounding of a float64 sum whose terms are of the size of a call's arrays, about 1.

Where they cancel, to 0 or nearly so, one right way to compute differs from another by as much. Whether an exact 0 or an
unchanged bit is due there is a decision of gatespec's contract.
"""

LONGEST, LONGEST_SUM, LARGEST_MATRIX = 1031, 521, 160
"""Numbers of steps of the two longest calls: of sequences, of sums, which are slow on tensors, and of operations that
return a matrix over the steps."""

PART = 25
"""Number of calls that are tried before it is decided whether more are needed."""

DOES_NOT_RUN = "it does not run"
"""Such as code that tensors do not have: there is no such fault to find."""

_SUMS = ("rev_cumsum", "rev_cumsum_off")
_MLSTM_GATES = ("ordinary", "remembering", "saturated", "resets", "closed", "low m", "changing", "mixed")

_GRU_GATES = ("ordinary", "small", "remembering", "saturated", "closed", "extreme")
_HEADS = (
    (6, 3, 2, 1, 6, 2),
    (2, 2, 2, 2, 2, 2),
    (1, 4, 2, 4, 1, 2),
    (1, 1, 1, 6, 1, 3),
    (2, 1, 4, 1, 2, 4),
    (1, 1, 1, 1, 1, 1),
    (3, 1, 1, 3, 3, 1),
)


def why_unseen(mutant: Row, setting: Setting) -> str | None:
    """Why a fault cannot be seen in a setting; None if it can be.

    It is seen where a value or a gradient of a served call differs from that of the copy without the fault, in float64.
    What gatespec's contract has decided is not judged, and not seen: certain gradients (`without_decisions`), and
    results that are exact although their terms are rounded (`ROUNDING`).
    """
    if mutant.op not in TENSOR_OPERATIONS:
        return "its operation is not served"
    if setting is Setting.TENSORS and mutant.module not in TENSOR_MODULES:
        return "not in the loop"
    if mutant.function and not _is_entered(mutant, setting):
        return "no served call reaches it"
    raises = runs = False
    for part in range(len(_parts(mutant.op, setting))):
        try:
            got = _answers(mutant, mutant.op, setting, part)
        except Exception:
            return DOES_NOT_RUN
        for x, y in zip(_expected(mutant.op, setting, part)[0], got, strict=True):
            if isinstance(x, Exception):
                continue
            raises |= isinstance(y, Exception)
            runs |= not isinstance(y, Exception)
            if (raises and runs) or (not raises and _differ(x, y)):
                return None
    return DOES_NOT_RUN if raises else "no served call has another value or gradient"


def _is_entered(mutant: Row, setting: Setting) -> bool:
    """Whether any of the calls reaches the function in which the fault is."""
    entered = set().union(*(_expected(mutant.op, setting, part)[1] for part in range(len(_parts(mutant.op, setting)))))
    own = (mutant.module, mutant.function)
    return any((module, name.partition(".<locals>")[0]) == own for module, name in entered)


@cache
def _expected(op: str, setting: Setting, part: int) -> tuple[list[Any], frozenset[tuple[str, str]]]:
    """The answers of the copy without a fault, and the functions that it enters, each with its module."""
    entered: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            entered.add(frame.f_code)

    sys.setprofile(note)
    try:
        answers = _answers(None, op, setting, part)
    finally:
        sys.setprofile(None)
    paths = [(Path(code.co_filename), code.co_qualname) for code in entered]
    return answers, frozenset((path.name, name) for path, name in paths if path.parent.name == NAME)


def _answers(mutant: Row | None, op: str, setting: Setting, part: int) -> list[Any]:
    with planted(mutant, setting) as implementation:
        return [_answer(implementation, *call) for call in _parts(op, setting)[part]]


@cache
def _parts(op: str, setting: Setting) -> list[list[tuple]]:
    """The calls in parts, of which most faults need only the first; the longest calls come last.

    Loops that are tried with few steps have no long calls.
    """
    calls = list(_calls(op))
    longest, shorter = calls[:2], calls[2:]
    parts = [shorter[at : at + PART] for at in range(0, len(shorter), PART)]
    return parts if setting is Setting.TENSORS and op in TENSOR_STEPS else [*parts, longest]


def _calls(op: str) -> Iterator[tuple[Call, bool]]:
    """Calls of every kind, in float64, and whether the gradient is judged."""
    rng = np.random.default_rng(2024)
    for number in range(CASES):
        # Two of the cases are long enough for a fault that only shows after many steps, and plain otherwise, so that
        # everybody serves them.
        long = number < 2
        judged, seed, S = True, number, LONGEST if long else int(rng.choice([0, 1, 2, 3, 5, 7, 13, 33]))
        if op in ("mlstm", "mlstm_step"):
            case = MLSTMCase(
                int(rng.integers(1, 4)),
                1 if op == "mlstm_step" else S,
                int(rng.integers(1, 4)),
                int(rng.choice([1, 3, 5, 17])),
                int(rng.choice([1, 2, 5])),
                lengths=(3, 0, 4, S) if op == "mlstm" and number % 5 == 4 else None,
                state="random" if op == "mlstm_step" or (number % 3 == 0 and not long) else "none",
                gates=str(rng.choice(_MLSTM_GATES)),
                chunk_size=(None, 16, 2, 4, 1)[number % 5] if op == "mlstm" else None,
                eps=0.0 if number % 4 or long else 1e-3,
                cotangents="output only" if number % 2 else "dense",
                seed=seed,
            )
            judged = without_decisions(OPERATIONS["mlstm"], case) == case
        elif op == "gru":
            case = gru_case(
                int(rng.integers(1, 4)),
                S if long else min(S, 13),
                int(rng.choice([1, 2, 3])),
                _HEADS[number % len(_HEADS)],
                lengths=(3, 0, 4) if number % 5 == 4 else None,
                state=number % 3 == 0 and not long,
                gates=str(rng.choice(_GRU_GATES)),
                with_gradient_clipping=0.1 if number % 7 == 6 else None,
                seed=seed,
            )
        else:
            values = str(rng.choice(["ordinary", "same sign", "resets", "wide"]))
            longest = LONGEST_SUM if op in _SUMS else LARGEST_MATRIX
            case = SumCase((2, 3), min(S, longest), values, seed=seed, masked_cotangents=False)
        yield OPERATIONS[op].call_of(case, "float64"), judged
    for row in range(FEW):
        # Everybody serves plain calls of the sizes that people use.
        limits = Limits(USUAL, True, "float64", TENSOR_STEPS.get(op, LONG_STEPS), pin=USUAL, row=row)
        for case in sampled(OPERATIONS[op].cases["dense"](limits), 0, 1):
            plain = {"cotangent_scale": 1.0, **{"mlstm": {"state": "none"}, "gru": {"state": False}}.get(op, {})}
            yield OPERATIONS[op].call_of(replace(case, **plain), "float64"), True


def _answer(implementation: Implementation, call: Call, judged: bool) -> Any:
    """Outputs by name, and gradients if they are judged, or what the call raised."""
    try:
        with np.errstate(all="ignore"):
            outputs, gradients = implementation.vjp(call)
    except Exception as error:
        return error
    return {**outputs, **({f"gradient of {name}": x for name, x in gradients.items()} if judged else {})}


def _differ(x: dict[str, Array], y: dict[str, Array]) -> bool:
    for name, expected in x.items():
        got = y.get(name)
        if got is None or got.shape != expected.shape:
            return True
        if not np.array_equal(np.isfinite(got.values), np.isfinite(expected.values)):
            return True
        finite = np.isfinite(expected.values)
        error = np.abs(got.values[finite] - expected.values[finite]).max(initial=0.0)
        if error > max(ROUNDING, DIFFERENCE * np.abs(expected.values[finite]).max(initial=0.0)):
            return True
    return False
