"""A counterexample has elements as simple as the break allows; what holds is never tried with other elements."""

from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.options import RunOptions
from conformance.cases import FwbwCase, GRUCase, MLSTMCase, SumCase, from_json, simpler, simplicity, to_json
from conformance.frameworks.numpy import adapter
from conformance.judge import search
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import law_of

CASES = (
    MLSTMCase(2, 9, 2, 3, 2, state="random", gates="resets", seed=4),
    MLSTMCase(2, 0, 1, 3, 2, lengths=(3, 0, 2), state="empty"),
    FwbwCase(MLSTMCase(1, 5, 1, 3, 2, state="random"), use_initial_state=True),
    GRUCase(2, 5, 3, (6, 3, 2, 1, 6, 2), state=True, gates="extreme", seed=2),
)


def arrays_of(case: Any) -> dict[str, np.ndarray]:
    of_both = {**case.arrays("float32"), **{f"d{name}": x for name, x in case.cotangent_arrays("float32").items()}}
    return {name: x.values for name, x in of_both.items() if name != "cu_seqlens"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_elements_are_replaced_and_nothing_else_is(case: Any) -> None:
    drawn = arrays_of(case)
    ones, signs, whole = map(arrays_of, simpler(case))
    for name, x in drawn.items():
        # A cast to float32 may have made an element 0 that the draw had not.
        finite = np.isfinite(x) & (x != 0)
        assert np.array_equal(ones[name], np.where(finite, 1.0, x)), name
        assert np.array_equal(signs[name], np.where(finite, np.sign(x), x)), name
        assert np.array_equal(whole[name], np.rint(whole[name])) and whole[name].shape == x.shape, name


def test_the_simplest_come_first_and_are_written_and_read() -> None:
    for case in (*CASES, SumCase((2,), 5, values="resets")):
        assert [simplicity(each) for each in (*simpler(case), case)] == [0, 1, 2, 3]
        for each in simpler(case):
            assert from_json(to_json(each)) == each and each.size == case.size
            assert "elements" in each.describe() and "elements" not in case.describe()
    assert simpler(object()) == []


def test_logarithms_of_decays_stay_negative() -> None:
    for each in simpler(SumCase((2, 3), 7, values="resets")):
        assert (each.log_gates("float64")["forget_gates"].values <= 0).all()


def doubled(q: Any, k: Any, v: Any, *gates: Any, **options: Any) -> Any:
    return reference.mlstm(q, k, 2 * v, *gates, **options)


def second_head_as_first(q: Any, k: Any, v: Any, *gates: Any, **options: Any) -> Any:
    """Wrong only where heads differ, so that ones do not show it."""
    return reference.mlstm(q, k, np.broadcast_to(v[..., :1, :], v.shape), *gates, **options)


def judged(function: Any) -> LawResult:
    target = adapter("planted", {"mlstm": function}, "cpu")
    return run_law(target, law_of("mlstm.value"), "float64", RunOptions(max_steps=40, shrink_seconds=5.0))


def test_a_break_that_ones_show_is_shown_with_ones() -> None:
    found = judged(doubled).counterexamples[0]
    assert found.kind.where == "h" and found.case.endswith("elements ones")
    case = from_json(found.stored)
    assert {1.0} == set(np.unique(case.arrays("float64")["q"].values))


def test_a_break_that_ones_hide_keeps_what_shows_it() -> None:
    result = judged(second_head_as_first)
    assert result.status == "failed"
    for found in result.counterexamples:
        case = from_json(found.stored)
        assert simplicity(case) > 0 and case.N >= 2


def test_a_right_target_is_never_tried_with_other_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(case: Any) -> list[Any]:
        raise AssertionError("nothing broke")

    monkeypatch.setattr(search, "simpler", none)
    assert judged(reference.mlstm).status == "passed"
    with pytest.raises(AssertionError, match="nothing broke"):
        judged(doubled)
