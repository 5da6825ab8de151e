"""Of a fault that shows in few calls, the diagnosis says in which: sizes, gates, or the formula that holds there."""

import re
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase, from_json
from conformance.diagnosis.causes import sentence
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.faults import Fault, Faults
from conformance.formulas.judged import Clock, Judge
from conformance.frameworks.implementation import Implementation
from conformance.judge.runner import run
from conformance.operations import OPERATIONS
from conformance.operations.gru import gru_case
from tests.grids import larger
from tests.suite.strangers import rare


def _fault(target: Implementation, case: Any, dtype: str = "float32") -> Fault:
    """The only fault that a case shows."""
    (op,) = target.functions
    judges = {dtype: Judge(target, OPERATIONS[op], dtype)}
    (fault,) = Faults(OPERATIONS[op], judges, Clock(60.0)).explain(case, dtype)
    return fault


@pytest.mark.parametrize(
    ("target", "case", "said"),
    [
        (
            rare.tail_dropped(),
            MLSTMCase(1, 68, 1, 16, 16, held=0.3),
            "The value of mlstm is wrong where S > 64 and S % 16 ≠ 0",
        ),
        larger(
            rare.tail_dropped(32, 8),
            MLSTMCase(1, 68, 1, 16, 16, held=0.3),
            "The value of mlstm is wrong where S > 32 and S % 8 ≠ 0",
        ),
        (
            rare.raising(7),
            MLSTMCase(1, 7, 1, 16, 16),
            "mlstm raised RuntimeError: no kernel for 7 steps where S = 7",
        ),
    ],
    ids=["tail of 16 above 64", "tail of 8 above 32", "one length"],
)
def test_the_lengths_of_wrong_calls_are_found_by_bisection(target: Any, case: Any, said: str) -> None:
    fault = _fault(target, case)
    assert re.sub(r" \(rare\.py:\d+\)", "", sentence(fault)) == said


def test_the_gate_beyond_which_calls_are_wrong_is_found_by_bisection() -> None:
    fault = _fault(rare.overflowing_floor(), MLSTMCase(1, 64, 1, 1, 1, gates="extreme", seed=183))
    # exp(−m) overflows in float32 below −88.7.
    assert "The gradient of mlstm is NaN" in sentence(fault) and "i is below −88" in sentence(fault)


@pytest.mark.parametrize(
    ("target", "case", "name"),
    [
        (
            rare.steps_dropped(),
            MLSTMCase(1, 68, 1, 16, 16),
            "last partial chunk dropped (chunks of 16) in sequences of more than 64 steps",
        ),
        (
            rare.clamped_log_gate(-20.0),
            MLSTMCase(1, 2, 1, 1, 1, gates="extreme"),
            "log σ(f) clamped at −20",
        ),
        (
            rare.padded_scale(),
            MLSTMCase(1, 1, 1, 5, 5, removed=("normaliser above its floor",)),
            "1/√K of K padded to a multiple of 16",
        ),
        (
            rare.without_the_reset_gates_path(),
            gru_case(1, 4, 4, (1, 1, 1, 1, 1, 1)),
            "gradient through the reset gate's weight dropped",
        ),
        (
            rare.neighbours_state(),
            gru_case(3, 0, 4, (1, 1, 1, 1, 1, 1), lengths=(1, 0, 1)),
            "an empty packed sequence takes its neighbour's state",
        ),
    ],
    ids=["steps dropped", "clamped log gate", "padded K", "reset gate's path", "empty sequence"],
)
def test_a_formula_that_differs_in_few_calls_is_recognised(target: Any, case: Any, name: str) -> None:
    fault = _fault(target, case)
    assert fault.formula is not None and fault.formula.name == f"the specification with a fault: {name}"


@pytest.mark.whole_grid
def test_a_normaliser_that_is_rounded_to_16_bits_is_recognised() -> None:
    case = MLSTMCase(1, 64, 1, 32, 32, state="random", gates="remembering", held=0.2)
    fault = _fault(rare.rounded_normaliser(), case, "bfloat16")
    name = "the specification with a fault: normaliser's memory n rounded to bfloat16 at each step"
    assert fault.formula is not None and fault.formula.name == name


def test_the_case_of_a_cause_is_the_smallest_one_that_is_shown() -> None:
    target = rare.padded_scale()
    options = RunOptions(ops=("mlstm",), laws=("value",), dtypes=("float32",), examples=20, max_steps=33)
    results = list(run(target, options))
    first = diagnose(target, options, results).causes[0]
    assert first.formula == "the specification with a fault: 1/√K of K padded to a multiple of 16"
    shown = [from_json(each.stored).size for result in results for each in result.counterexamples]
    assert from_json(dict(first.stored)).size <= min(shown)
