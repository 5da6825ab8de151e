"""The sizes for which a fault shows, found by bisection with faults that are functions of a case."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from conformance.cases import MLSTMCase
from conformance.diagnosis.ranges import ranges_of
from conformance.features.mlstm import MLSTM
from conformance.formulas.judged import Clock

FEATURES = {feature.name: feature for feature in MLSTM}
TAIL, EVEN = ("S not a multiple of 4",), ("uneven head dims",)


def _clauses(shown: Callable[[MLSTMCase], bool], case: MLSTMCase, features: tuple[str, ...]) -> list[str]:
    experiments = SimpleNamespace(features=MLSTM, clock=Clock(60.0))
    small = SimpleNamespace(case=case, call=None)
    needed = [FEATURES[name] for name in features]
    return [each.clause for each in ranges_of(experiments, small, needed, "value", shown)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shown", "S", "clause"),
    [
        (lambda case: case.S % 16 > 0, 5, "S % 16 ≠ 0"),
        (lambda case: case.S % 4 > 0 and case.S > 64, 130, "S > 64 and S % 4 ≠ 0"),
        (lambda case: case.S % 8 > 0 and case.S > 20, 53, "S > 20 and S % 8 ≠ 0"),
        (lambda case: case.S > 11, 70, "S > 11"),
        (lambda case: case.S == 7, 7, "S = 7"),
    ],
)
def test_a_fault_of_lengths_is_told_as_it_is(shown: Callable, S: int, clause: str) -> None:
    assert _clauses(shown, MLSTMCase(1, S, 1, 16, 16), TAIL) == [clause]


def test_a_fault_of_a_head_dim_names_the_one_that_it_is_about() -> None:
    assert _clauses(lambda case: case.K % 8 > 0, MLSTMCase(1, 3, 1, 5, 5), EVEN) == ["K % 8 ≠ 0"]
    # Another size than K's or V's would be another fault, and so would one of them alone where they have to differ.
    assert _clauses(lambda case: case.K != case.V, MLSTMCase(1, 3, 1, 5, 3), EVEN) == []


@pytest.mark.parametrize(
    "shown", [lambda case: (case.S + case.seed) % 16 > 9, lambda case: case.S == 7 and not case.seed]
)
def test_what_depends_on_values_is_no_range(shown: Callable) -> None:
    assert _clauses(shown, MLSTMCase(1, 10 if shown(MLSTMCase(1, 10, 1, 16, 16)) else 7, 1, 16, 16), TAIL) == []
