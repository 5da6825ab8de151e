"""The check, before anything is timed, that a contender computes the operation, by the suite's oracle and tolerances.

A contender runs on a smaller case with the same head dims and dtype. Within its tolerances, which for a peer's mLSTM
are those of any correct design, it *conforms*. Beyond them, but closer to the oracle than `SAME`, it is the same
function computed less accurately. Anything else is *wrong* and is not timed unless its row states beforehand how it
differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.speed.contenders import Contender, Function
from benchmarks.speed.operations import STATES, TIMED, Case
from conformance.base.dtypes import Array
from conformance.tolerance.budget import Precision, judge

SAME = {"float64": 1e-6, "float32": 1e-2, "bfloat16": 1e-1, "float16": 1e-1}
"""Largest error, over the largest element, of another way to compute the same; a wrong formula is off by order 1."""

STEPS = 130


@dataclass(frozen=True)
class Conformity:
    """The comparison of a contender with the oracle.

    Attributes:
        verdict: ``conforms``, ``same function`` or ``wrong``.
        worst: its largest error over the tolerance of that error.
        where: the array with that error.
        relative: its largest error over the largest element of the same array.
    """

    verdict: str
    worst: float
    where: str
    relative: float


def smaller(case: Case) -> Case:
    """The case for the check: the same head dims, a few sequences and heads, at most `STEPS` steps.

    The length is a multiple of 32 if possible, because some peers require that their chunk divides it.
    """
    steps = min(case.S, STEPS - STEPS % 32 if case.S >= 32 else case.S)
    return replace(case, B=min(case.B, 2), N=min(case.N, 2), S=steps)


def examined(contender: Contender, case: Case, function: Function, driver: Any) -> Conformity:
    """Judge ``function``, which was loaded for ``case``; the case should come from `smaller`."""
    precision = Precision(case.dtype, case.S)
    worst, where, relative = 0.0, "", 0.0
    for name, got, values, slack in _compared(contender, case, function, driver):
        ratio = judge(got, values, np.asarray(slack), precision if contender.own else _peers(case)).worst
        size = float(np.abs(values).max(initial=0.0)) or 1.0
        error = float(np.abs(got.values - values).max(initial=0.0)) / size if got.shape == values.shape else np.inf
        error = np.inf if np.isnan(error) else error
        if ratio >= worst:
            worst, where = ratio, name
        relative = max(relative, error)
    verdict = "conforms" if worst <= 1 else "same function" if relative <= SAME[case.dtype] else "wrong"
    return Conformity(verdict, worst, where, relative)


def _peers(case: Case) -> Precision:
    return TIMED[case.op].peers_precision(case.dtype, case.S)


def _compared(
    contender: Contender, case: Case, function: Function, driver: Any
) -> Iterator[tuple[str, Array, np.ndarray, np.ndarray]]:
    """Each output and gradient: its name, what was computed, the oracle's values, and their tolerance."""
    timed, record = TIMED[case.op], TIMED[case.op].record
    precision = Precision(case.dtype, case.S) if contender.own else _peers(case)
    call = record.make_call(record.name, timed.drawn(case, contender.options), case.dtype)
    arrays = timed.prepared({name: x.values for name, x in call.arrays.items()})
    if contender.restriction is not None:
        arrays = contender.restriction.arrays(arrays)
    # One output alone is differentiated; of states, that is none.
    cotangents = {name: 0 * x.values for name, x in call.cotangents.items()}
    first = timed.returned[0]
    cotangents[first] = call.cotangents[first].values
    both = case.direction == "both"
    pulled = list(contender.transposed({first: cotangents[first]}).values()) if both else None
    natives = driver.natives(contender.transposed(timed.given(arrays)))
    outputs, gradients = driver.values(function, natives, pulled)
    value = record.value(arrays, call.options, precision)
    got = contender.transposed(dict(zip(timed.returned, outputs, strict=True)))
    for name, y in timed.comparable(got, value.values).items():
        dtype = "float32" if name in STATES and case.dtype != "float64" else case.dtype
        yield name, Array(y, dtype), value.values[name], value.slack[name]
    if both:
        gradient = timed.gradient(record.gradient(arrays, call.options, cotangents, precision), case)
        differs = contender.restriction.differs if contender.restriction is not None else ()
        for name, x in contender.transposed(gradients).items():
            if name in gradient.values and name not in differs:
                yield f"gradient of {name}", Array(x, case.dtype), gradient.values[name], gradient.slack[name]
