"""A target that keeps results, or what it computed from values, by the shapes of a call is told from a wrong one."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from conformance.base.options import RunOptions
from conformance.diagnosis.causes import sentence
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.faults import Faults
from conformance.formulas.judged import Clock, Judge
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run
from conformance.operations import OPERATIONS
from tests.suite.strangers.torch_loops import gru_loop

Target = Callable[..., Any]


def exact(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def whole_result() -> Target:
    kept: dict[Any, torch.Tensor] = {}
    return lambda x: kept.setdefault((x.shape, x.dtype), exact(x).detach())


def mask() -> Target:
    """Zeros are left out, but the mask of a shape is that of its first call."""
    kept: dict[Any, torch.Tensor] = {}
    return lambda x: exact(x * kept.setdefault(x.shape, x.detach() > 0)) + exact(x * (x.detach() <= 0))


def gradient() -> Target:
    kept: dict[Any, torch.Tensor] = {}

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return exact(x)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
            (dy,) = grad_outputs
            return kept.setdefault((dy.shape, dy.dtype), dy.cumsum(-1))

    return lambda x: Sum.apply(x)


def raising() -> Target:
    kept: dict[Any, torch.Tensor] = {}

    def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
        if not torch.equal(kept.setdefault((x.shape, x.dtype), x.detach().clone()), x):
            raise ValueError("this graph was captured for other values")
        return exact(x)

    return rev_cumsum


FIRST = "is right on the first call with given shapes, and"
LATER = f"The value of rev_cumsum {FIRST} wrong on later ones"
STALE = {
    whole_result: LATER,
    mask: LATER,
    gradient: f"The gradient of rev_cumsum {FIRST} wrong on later ones",
    raising: f"rev_cumsum {FIRST} on later ones it raised ValueError: this graph was captured for other values",
}


def options(*, quick: bool) -> RunOptions:
    few: dict[str, Any] = {"examples": 40, "max_steps": 2, "shrink_seconds": 0.2}
    return RunOptions(ops=("rev_cumsum",), laws=("value", "gradient"), dtypes=("float32",), quick=quick, **few)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("kept", STALE)
def test_a_stale_result_is_the_only_cause(kept: Callable[[], Target], quick: bool) -> None:
    target = TorchImplementation("stale", {"rev_cumsum": kept()}, "cpu")
    results = list(run(target, options(quick=quick)))
    assert any(result.status == "failed" for result in results)
    (cause,) = diagnose(target, options(quick=quick), results).causes
    assert re.sub(r" \(test_staleness\.py:\d+\)", "", cause.sentence) == STALE[kept]
    assert {check.law for check in cause.explains} == {each.law.id for each in results if each.status == "failed"}


def test_it_is_found_in_a_process_that_did_not_try_the_laws() -> None:
    """There, the first call of each failed law is right."""
    results = list(run(TorchImplementation("stale", {"rev_cumsum": whole_result()}, "cpu"), options(quick=True)))
    fresh = TorchImplementation("stale", {"rev_cumsum": whole_result()}, "cpu")
    (cause,) = diagnose(fresh, options(quick=True), results).causes
    assert cause.sentence == LATER and {check.law for check in cause.explains} >= {"rev_cumsum.value"}


def stale(name: str, function: Target) -> tuple[str | None, int]:
    """The sentence about a target, if its results are stale, and the number of cases tried."""
    judge = Judge(TorchImplementation("stale", {name: function}, "cpu"), OPERATIONS[name], "float32")
    faults = Faults(OPERATIONS[name], {"float32": judge}, Clock(60.0))
    found = faults.stale("float32")
    return None if found is None else sentence(found), len(judge.done)


def test_weights_that_were_packed_at_the_first_call_are_found() -> None:
    loop, kept = gru_loop(), {}

    def gru(x: torch.Tensor, weight: torch.Tensor, *arrays: torch.Tensor, **given: Any) -> Any:
        return loop(x, kept.setdefault((x.shape, weight.shape), weight.detach().clone()), *arrays, **given)

    said, _ = stale("gru", gru)
    # The weight has no gradient on the first call either.
    assert said == f"The value of gru {FIRST} wrong on later ones"


def on_every_second_call() -> Target:
    calls: list[int] = []

    def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        # One case is two calls: one without a gradient, and one with it.
        return exact(x) if len(calls) % 4 in (1, 2) else 2 * exact(x)

    return rev_cumsum


def doubled(when: Callable[[torch.Tensor], bool]) -> Target:
    return lambda x: 2 * exact(x) if when(x.detach()) else exact(x)


WRONG = {
    "everywhere": (partial(doubled, lambda x: True), 1),
    "on every second call": (on_every_second_call, 10),
    "where the first value is positive": (partial(doubled, lambda x: bool((x[..., :1] > 0).any())), 10),
    "where the first value is large": (partial(doubled, lambda x: bool((x[..., :1] > 1).any())), 10),
    "in short calls": (partial(doubled, lambda x: x.shape[-1] < 8), 5),
    "in calls of odd length": (partial(doubled, lambda x: x.shape[-1] % 2 == 1), 5),
    "where there are leading axes": (partial(doubled, lambda x: x.ndim > 1), 5),
    "without leading axes": (partial(doubled, lambda x: x.ndim == 1), 1),
}


@pytest.mark.parametrize("where", WRONG)
def test_a_target_that_is_merely_wrong_is_called_a_few_times_and_is_not_stale(where: str) -> None:
    make, most = WRONG[where]
    said, trials = stale("rev_cumsum", make())
    assert said is None and trials <= most, (said, trials)
