"""Known failures of strangers: an entry excuses what its cause explains, in every law and dtype, and nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase, to_json
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.expectations import INEXACT, Example, Known
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run
from tests.suite.strangers.torch_loops import mlstm_loop

CASE = MLSTMCase(1, 3, 1, 2, 2, state="random", seed=1)


class _ChangedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: torch.Tensor, change: Callable) -> torch.Tensor:
        ctx.change = change
        return f.clone()

    @staticmethod
    def backward(ctx: Any, df: torch.Tensor) -> tuple:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.change(df), None


def noisy(df: torch.Tensor) -> torch.Tensor:
    """Off by a hundred-thousandth of the array's largest value, up and down in turn."""
    signs = 1 - 2 * (torch.arange(df.numel()) % 2)
    return df + 1e-5 * df.abs().amax() * signs.reshape(df.shape) if df.numel() else df


def stranger(*faults: str, of_f: Callable | None = None) -> TorchImplementation:
    loop = mlstm_loop(*faults)

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return loop(q, k, v, i, f if of_f is None else _ChangedGradient.apply(f, of_f), **options)

    return TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")


def entry(**fields: Any) -> Known:
    example = Example(law="mlstm.gradient", dtype="float64", case=json.dumps(to_json(CASE)))
    return Known(operations=("mlstm",), reason="why", example=example, **fields)


def judged(implementation: TorchImplementation, *known: Known) -> dict[tuple[str, str], LawResult]:
    options = RunOptions(
        laws=("value", "gradient", "packed_gradient"),
        ops=("mlstm",),
        dtypes=("float64", "float32"),
        examples=8,
        max_steps=33,
        known=known,
        shrink_seconds=0.0,
    )
    return {(result.law.name, result.dtype): result for result in run(implementation, options)}


NOISE = entry(where=("gradient of f",), breaks=("number",), error_up_to=1e-4)


def test_an_entry_for_noise_in_f_excuses_the_noise_in_every_law_and_dtype():
    found = judged(stranger(of_f=noisy), NOISE)
    assert {name: result.status for name, result in found.items()} == {
        ("value", "float64"): "passed",
        ("value", "float32"): "passed",
        ("gradient", "float64"): "known",
        ("gradient", "float32"): "known",
        ("packed_gradient", "float64"): "known",
        ("packed_gradient", "float32"): "known",
    }
    assert all(outcome.fails for result in found.values() for outcome in result.expected_failures)


def test_an_entry_for_noise_in_f_does_not_excuse_an_f_that_is_doubled():
    found = judged(stranger(of_f=lambda df: 2 * df), NOISE)
    assert found["gradient", "float64"].status == found["packed_gradient", "float32"].status == "failed"


def test_one_noise_does_not_excuse_another_array():
    found = judged(stranger("1/sqrt(K) left out", of_f=noisy), NOISE)
    assert found["value", "float64"].status == found["gradient", "float64"].status == "failed"


FORMULA = entry(
    formula="the gradient with the normaliser held constant, its floor's dependence on m included",
)


def test_a_formula_excuses_the_calls_whose_answer_it_is_and_no_other_fault():
    held = judged(stranger("normaliser detached"), FORMULA)
    assert {held["gradient", dtype].status for dtype in ("float64", "float32")} == {"known"}
    both = judged(stranger("normaliser detached", of_f=lambda df: 2 * df), FORMULA)
    assert {both["gradient", dtype].status for dtype in ("float64", "float32")} == {"failed"}


def test_a_promise_excuses_calls_outside_it_that_are_right_inside():
    wrong = stranger("initial state ignored")
    state = entry(promise="not initial_state", breaks=INEXACT, error_up_to=float("inf"))
    assert {result.status for result in judged(wrong, state).values()} == {"known"}
    # Without an initial state these calls would be wrong just the same.
    other = judged(stranger("initial state ignored", "1/sqrt(K) left out"), state)
    assert other["value", "float64"].status == other["gradient", "float64"].status == "failed"


def test_an_entry_whose_example_passes_excuses_nothing_and_says_so():
    right = judged(stranger(), NOISE)["gradient", "float64"]
    assert right.status == "fixed" and "passes now: remove the entry" in (right.reason or "")
    # The example of this entry has no initial state, where the target is right.
    case = json.dumps(to_json(replace(CASE, state="none")))
    state = entry(promise="not initial_state", breaks=INEXACT, error_up_to=float("inf"))
    idle = msgspec.structs.replace(state, example=msgspec.structs.replace(state.example, case=case))
    found = judged(stranger("initial state ignored"), idle)
    assert found["value", "float32"].status == found["gradient", "float64"].status == "failed"


@pytest.mark.parametrize("target", ["tests.suite.strangers.catalogue:detached_and_nan"])
def test_what_is_written_of_a_pair_of_faults_excuses_all_of_it(tmp_path: Path, target: str) -> None:
    from click.testing import CliRunner

    from conformance.cli import main
    from conformance.judge.expectations import read

    file = tmp_path / "known.toml"
    words = ["run", target, "--framework", "torch", "--op", "mlstm", "--law", "value", "--law", "gradient"]
    words += ["--dtype", "float32", "--examples", "10", "--max-steps", "33", "--failures", str(tmp_path / "failures")]
    first = CliRunner().invoke(main, [*words, "--write-known", str(file)])
    assert first.exit_code == 1, first.output
    file.write_text(file.read_text().replace('reason = ""', 'reason = "two faults"'))
    assert len(read("known", file)[1]) <= 3
    again = CliRunner().invoke(main, [*words, "--known", str(file)])
    assert again.exit_code == 0, again.output
