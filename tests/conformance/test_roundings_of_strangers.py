"""Where a law asks gatespec's own GRU for exact bits, a stranger is held to the definition's tolerance."""

from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.runner import run_law
from conformance.laws import law_of
from tests.suite.strangers.torch_loops import gru_loop

pytest.importorskip("torch")
ROUNDING = 2.3e-16


def status(error: float, *, own: bool) -> str:
    """The result of `gru.fixed_point` for a correct GRU whose results all have a relative error."""
    from conformance.frameworks.torch import adapter

    exact = gru_loop()

    def gru(*arrays: Any, **options: Any) -> Any:
        return tuple(x * (1 + error) for x in exact(*arrays, **options))

    target = adapter("planted", {"gru": gru}, "cpu")
    target.keeps_contract = own
    options = RunOptions(examples=8, max_steps=40, shrink_seconds=0.5)
    return run_law(target, law_of("gru.fixed_point"), "float64", options).status


def test_a_stranger_may_round_what_it_keeps() -> None:
    assert status(ROUNDING, own=False) == status(0.0, own=False) == "passed"
    assert status(1e-9, own=False) == "failed"


def test_the_projects_own_may_not() -> None:
    assert status(0.0, own=True) == "passed"
    assert status(ROUNDING, own=True) == "failed"
