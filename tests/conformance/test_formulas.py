"""The formulas that are recognised: the definition among them is the reference's, and each other one is not."""

import itertools

import numpy as np
import pytest

from conformance import oracle
from conformance.cases import GATES, GRU_GATES, HEADS, GRUCase, MLSTMCase, SLSTMCase
from conformance.formulas import gru, mlstm, slstm
from conformance.formulas.formula import DTYPES
from conformance.operations import OPERATIONS
from conformance.tolerance.budget import Precision

MLSTM_CASES = [
    MLSTMCase(2, 9, 2, 3, 3, gates=gates, state=state, lengths=lengths, seed=5)
    for gates, (state, lengths) in itertools.product(
        GATES, (("none", None), ("random", None), ("empty", (3, 0, 9)), ("random", (3, 0, 9)))
    )
]
GRU_CASES = [
    GRUCase(2, 9, 3, HEADS[0], gates=gates, state=state, lengths=lengths, clipping=clipping, seed=5)
    for gates, (state, lengths, clipping) in itertools.product(
        GRU_GATES, ((False, None, None), (True, None, 0.1), (True, (3, 0, 9), 0.1))
    )
]

SLSTM_CASES = [
    SLSTMCase(2, 9, 2, 3, gates=gates, state=state, lengths=lengths, forget_gate=forget, clipping=clipping, seed=5)
    for gates, (state, lengths, forget, clipping) in itertools.product(
        GATES,
        (("none", None, None, None), ("random", None, "exp", 0.1), ("empty", (3, 0, 9), None, 0.1)),
    )
]


def _answers(operation, case):
    call = operation.call_of(case, "float64")
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    precision = Precision("float64", call.steps)
    value = operation.value(arrays, call.options, precision).values
    gradient = operation.gradient(arrays, call.options, cotangents, precision).values
    expected = {**value, **{f"gradient of {name}": x for name, x in gradient.items() if name in arrays}}
    return (arrays, call.options, cotangents), expected


def _apart(got, expected):
    """The largest error of any array, relative to that array's largest value; infinite where other elements are."""
    worst = 0.0
    for name, x in expected.items():
        finite = np.isfinite(x)
        if not np.array_equal(got[name][~finite], x[~finite]):
            return np.inf
        error = np.abs(np.where(finite, got[name], 0.0) - np.where(finite, x, 0.0)).max(initial=0.0)
        error = np.inf if np.isnan(error) else error
        worst = max(worst, error / max(np.abs(x[finite]).max(initial=0.0), 1e-300) if error else 0.0)
    return worst


FORMULAS = {"mlstm": mlstm.FORMS, "gru": gru.FORMS, "slstm": slstm.FORMS}
CASES = {"mlstm": MLSTM_CASES, "gru": GRU_CASES, "slstm": SLSTM_CASES}


@pytest.mark.parametrize(
    ("op", "case"), [pytest.param(op, case, id=f"{op}-{case.describe()}") for op in CASES for case in CASES[op]]
)
def test_the_formula_of_no_other_choice_is_the_definition(op, case):
    given, expected = _answers(OPERATIONS[op], case)
    assert _apart(FORMULAS[op].compute({}, *given), expected) < 1e-11


SHOWN_BY = {
    "mlstm": (
        MLSTMCase(2, 9, 2, 3, 3, gates="large m", state="random", eps=1e-3, seed=5),
        MLSTMCase(2, 9, 2, 3, 3, gates="large m", removed=("normaliser above its floor",), seed=5),
        MLSTMCase(1, 131, 1, 3, 3, state="random", seed=5),
        MLSTMCase(3, 0, 2, 3, 3, lengths=(3, 2, 9), state="random", seed=5),
        MLSTMCase(3, 0, 2, 3, 3, lengths=(3, 0, 2), seed=5),
        MLSTMCase(2, 9, 2, 3, 3, gates="extreme", state="random", seed=5),
        MLSTMCase(2, 9, 2, 3, 3, state="random", eps=1e-3, seed=5),
        MLSTMCase(2, 9, 2, 3, 3, gates="shut", seed=5),
        MLSTMCase(2, 9, 2, 3, 3, gates="low m", state="none", eps=1e-3, seed=5),
    ),
    "gru": (
        GRUCase(2, 9, 3, HEADS[0], state=True, clipping=0.05, seed=5),
        GRUCase(3, 0, 3, HEADS[1], lengths=(3, 2, 9), state=False, seed=5),
        GRUCase(3, 0, 3, HEADS[1], lengths=(3, 0, 2), state=False, seed=5),
        GRUCase(1, 131, 3, HEADS[1], seed=5),
    ),
    "slstm": (
        SLSTMCase(2, 9, 2, 3, state="random", clipping=0.05, seed=5),
        SLSTMCase(2, 9, 2, 3, gates="low m", seed=5),
        SLSTMCase(2, 9, 2, 3, gates="extreme", state="random", forget_gate="exp", seed=5),
        SLSTMCase(2, 9, 2, 3, gates="shut", seed=5),
        SLSTMCase(3, 0, 2, 3, lengths=(3, 2, 9), seed=5),
        SLSTMCase(3, 0, 2, 3, lengths=(3, 0, 2), seed=5),
        SLSTMCase(1, 131, 2, 3, state="random", seed=5),
    ),
}
LEAST = {"mlstm": 1e-3, "gru": 1e-4, "slstm": 1e-3}


@pytest.mark.parametrize(
    ("op", "formula"), [pytest.param(op, each, id=each.name) for op in FORMULAS for each in FORMULAS[op].formulas()]
)
def test_every_formula_is_another_function(op, formula):
    apart = []
    for case in SHOWN_BY[op]:
        (arrays, options, cotangents), expected = _answers(OPERATIONS[op], case)
        if op == "mlstm":
            options = {**options, DTYPES: {"f": "bfloat16", "v": "bfloat16"}}
        apart.append(_apart(formula.compute(arrays, options, cotangents), expected))
        if not formula.changes_value:
            value = formula.compute(arrays, options, None)
            assert _apart(value, {name: x for name, x in expected.items() if name in value}) < 1e-11
    assert max(apart) > LEAST[op]


@pytest.mark.parametrize("formulas", FORMULAS.values(), ids=FORMULAS)
def test_two_formulas_are_combined_unless_they_choose_the_same_thing(formulas):
    all_of_them = formulas.formulas()
    first, second = all_of_them[0], next(each for each in all_of_them if each.changes_value)
    both = formulas.combined(first, second)
    assert set(both.change) == {*first.change, *second.change}
    assert formulas.combined(first, first) is None
