"""Shrinking keeps the kind of break, and another kind is another counterexample."""

from pathlib import Path

from conformance.base.options import RunOptions
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import law_of
from conformance.tolerance.compared import BreakKind

SCAN = """
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    {body}
"""


def judged(directory: Path, body: str) -> LawResult:
    path = directory / "target.py"
    path.write_text(SCAN.format(body=body))
    return run_law(load(str(path), None, "cpu"), law_of("rev_cumsum.value"), "float64", RunOptions(shrink_seconds=4.0))


def test_a_nan_and_a_wrong_number_are_two_counterexamples(tmp_path: Path) -> None:
    body = "y = exact(x)\n    return y * np.nan if x.shape[-1] > 60 else y[..., ::-1]"
    result = judged(tmp_path, body)
    assert [each.kind for each in result.counterexamples] == [BreakKind("y", "number"), BreakKind("y", "nan")]
    number, nan = result.counterexamples
    assert "S=2" in number.case and number.got is not None and number.expected is not None
    assert "S=63" in nan.case, "the shortest sequence of more than 60 steps that is drawn"
    assert "reverse" not in nan.problem and "nan" in nan.problem


def test_an_exception_does_not_take_the_place_of_a_wrong_number(tmp_path: Path) -> None:
    # With two steps it raises: shrinking a wrong number must not end there.
    body = "if x.shape[-1] == 2: raise IndexError('a short sequence')\n    return exact(x) + (x.shape[-1] > 4)"
    result = judged(tmp_path, body)
    kinds = {each.kind: each for each in result.counterexamples}
    assert set(kinds) == {BreakKind("y", "number"), BreakKind("IndexError", "exception")}
    assert "S=5" in kinds[BreakKind("y", "number")].case or "S=7" in kinds[BreakKind("y", "number")].case
    assert "S=2" in kinds[BreakKind("IndexError", "exception")].case


def test_every_array_of_the_call_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "target.py"
    path.write_text(
        "import reference\n"
        "def mlstm(q, k, v, i, f, **options):\n"
        "    h, state = reference.mlstm(q, k, v, i, f, **{**options, 'return_state': True})\n"
        "    h, state = 2 * h, state._replace(C=state.C + 1e-3)\n"
        "    return (h, state) if options.get('return_state') else h\n"
    )
    result = run_law(
        load(str(path), None, "cpu"), law_of("mlstm.value"), "float64", RunOptions(examples=6, shrink_seconds=0.0)
    )
    arrays = {each.where: each for each in result.counterexamples[0].arrays}
    assert set(arrays) == {"h", "C", "n", "m"}
    assert arrays["n"].nature is None and arrays["m"].wrong == 0
    assert arrays["C"].nature == "number" and arrays["C"].wrong > 0.5
