"""Shrinking keeps the kind of break, and leaves elements as simple as the break allows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.options import RunOptions
from conformance.cases import FwbwCase, MLSTMCase, SumCase, from_json, simpler, simplicity, to_json
from conformance.judge import search
from conformance.judge.outcome import LawResult
from conformance.operations.gru import gru_case
from conformance.tolerance.compared import BreakKind
from tests.conformance.judging import judged, judged_file

SCAN = """
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    {body}
"""


def of_scan(directory: Path, body: str) -> LawResult:
    options = RunOptions(shrink_seconds=4.0)
    return judged_file(directory, SCAN.format(body=body), "rev_cumsum.value", options=options)


def test_a_nan_and_a_wrong_number_are_two_counterexamples(tmp_path: Path) -> None:
    body = "y = exact(x)\n    return y * np.nan if x.shape[-1] > 60 else y[..., ::-1]"
    result = of_scan(tmp_path, body)
    assert [each.kind for each in result.counterexamples] == [BreakKind("y", "number"), BreakKind("y", "nan")]
    number, nan = result.counterexamples
    assert "S=2" in number.case and number.got is not None and number.expected is not None
    assert "S=63" in nan.case, "the shortest sequence of more than 60 steps that is drawn"
    assert "reverse" not in nan.problem and "nan" in nan.problem


def test_an_exception_does_not_take_the_place_of_a_wrong_number(tmp_path: Path) -> None:
    # With two steps it raises: shrinking a wrong number must not end there.
    body = "if x.shape[-1] == 2: raise IndexError('a short sequence')\n    return exact(x) + (x.shape[-1] > 4)"
    result = of_scan(tmp_path, body)
    kinds = {each.kind: each for each in result.counterexamples}
    assert set(kinds) == {BreakKind("y", "number"), BreakKind("IndexError", "exception")}
    assert "S=5" in kinds[BreakKind("y", "number")].case or "S=7" in kinds[BreakKind("y", "number")].case
    assert "S=2" in kinds[BreakKind("IndexError", "exception")].case


def test_every_array_of_the_call_is_compared(tmp_path: Path) -> None:
    text = (
        "import reference\n"
        "def mlstm(q, k, v, i, f, **options):\n"
        "    h, state = reference.mlstm(q, k, v, i, f, **{**options, 'return_state': True})\n"
        "    h, state = 2 * h, state._replace(C=state.C + 1e-3)\n"
        "    return (h, state) if options.get('return_state') else h\n"
    )
    options = RunOptions(examples=6, shrink_seconds=0.0)
    result = judged_file(tmp_path, text, "mlstm.value", options=options)
    arrays = {each.where: each for each in result.counterexamples[0].arrays}
    assert set(arrays) == {"h", "C", "n", "m"}
    assert arrays["n"].nature is None and arrays["m"].wrong == 0
    assert arrays["C"].nature == "number" and arrays["C"].wrong > 0.5


CASES = (
    MLSTMCase(2, 9, 2, 3, 2, state="random", gates="resets", seed=4),
    MLSTMCase(2, 0, 1, 3, 2, lengths=(3, 0, 2), state="empty"),
    FwbwCase(MLSTMCase(1, 5, 1, 3, 2, state="random"), use_initial_state=True),
    gru_case(2, 5, 3, (6, 3, 2, 1, 6, 2), state=True, gates="extreme", seed=2),
)


def test_the_simplest_come_first_and_are_written_and_read() -> None:
    for case in (*CASES, SumCase((2,), 5, values="resets")):
        assert [simplicity(each) for each in (*simpler(case), case)] == [0, 1, 2, 3]
        for each in simpler(case):
            assert from_json(to_json(each)) == each and each.size == case.size
            assert "elements" in each.describe() and "elements" not in case.describe()
    assert simpler(object()) == []


def doubled(q: Any, k: Any, v: Any, *gates: Any, **options: Any) -> Any:
    return reference.mlstm(q, k, 2 * v, *gates, **options)


def second_head_as_first(q: Any, k: Any, v: Any, *gates: Any, **options: Any) -> Any:
    """Wrong only where heads differ, so that ones do not show it."""
    return reference.mlstm(q, k, np.broadcast_to(v[..., :1, :], v.shape), *gates, **options)


def of_mlstm(function: Any) -> LawResult:
    options = RunOptions(max_steps=40, shrink_seconds=5.0)
    return judged("mlstm.value", "float64", options, framework="numpy", mlstm=function)


def test_a_break_that_ones_show_is_shown_with_ones() -> None:
    found = of_mlstm(doubled).counterexamples[0]
    assert found.kind.where == "h" and found.case.endswith("elements ones")
    case = from_json(found.stored)
    assert {1.0} == set(np.unique(case.arrays("float64")["q"].values))


def test_a_break_that_ones_hide_keeps_what_shows_it() -> None:
    result = of_mlstm(second_head_as_first)
    assert result.status == "failed"
    for found in result.counterexamples:
        case = from_json(found.stored)
        assert simplicity(case) > 0 and case.N >= 2


def test_a_right_target_is_never_tried_with_other_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(case: Any) -> list[Any]:
        raise AssertionError("nothing broke")

    monkeypatch.setattr(search, "simpler", none)
    assert of_mlstm(reference.mlstm).status == "passed"
    with pytest.raises(AssertionError, match="nothing broke"):
        of_mlstm(doubled)
