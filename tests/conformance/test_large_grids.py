"""The law about large grids, tried on a CPU: on loops that are right, and on some that stop where a grid would."""

from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import all_laws
from conformance.laws._general_device import LIMIT

torch = pytest.importorskip("torch")
from conformance.frameworks.torch import TorchImplementation  # noqa: E402
from tests.suite.strangers.torch_loops import gru_loop, mlstm_loop  # noqa: E402

LAWS = {law.id: law for law in all_laws()}


def judged(op: str, function: Any) -> LawResult:
    return run_law(
        TorchImplementation("planted", {op: function}, "cpu"), LAWS[f"{op}.large_grids"], "float32", RunOptions()
    )


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchImplementation, "lacks", lambda self, feature: None)


def cut(x: Any, axis: int) -> Any:
    """The array with zeros where a grid of 65,535 programs along its axis leaves off."""
    return torch.cat(
        [x.narrow(axis, 0, min(LIMIT, x.shape[axis])), 0 * x.narrow(axis, LIMIT, x.shape[axis] - LIMIT)], axis
    )


def cut_mlstm(axis: int, *, in_gradient: bool = False) -> Any:
    loop = mlstm_loop()

    def mlstm(*arrays: Any, **options: Any) -> Any:
        if arrays[0].shape[axis] <= LIMIT:
            return loop(*arrays, **options)
        if in_gradient:
            arrays = tuple(_CutGradient.apply(x, axis) for x in arrays)
            return loop(*arrays, **options)
        h, state = loop(*arrays, **options)
        return cut(h, axis), state

    return mlstm


class _CutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: int) -> Any:
        ctx.axis = axis
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Any) -> tuple:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cut(dx, ctx.axis), None


def test_it_is_skipped_on_a_cpu_with_the_reason() -> None:
    found = judged("mlstm", mlstm_loop())
    assert found.status == "skipped" and found.reason == "the CPU has no launch grids; use --device cuda"


@pytest.mark.parametrize(("op", "loop"), [("mlstm", mlstm_loop()), ("gru", gru_loop())])
def test_a_right_loop_passes(grids: None, op: str, loop: Any) -> None:
    found = judged(op, loop)
    assert found.status == "passed", found.reason


@pytest.mark.parametrize("axis", [0, 2], ids=["sequences", "heads"])
@pytest.mark.parametrize("in_gradient", [False, True], ids=["value", "gradient"])
def test_a_kernel_that_leaves_off_at_the_limit_is_found(grids: None, axis: int, in_gradient: bool) -> None:
    found = judged("mlstm", cut_mlstm(axis, in_gradient=in_gradient))
    assert found.status == "failed" and found.counterexample is not None
    assert found.counterexample.kind.where.startswith("gradient of" if in_gradient else "h")


def test_it_is_about_operations_with_sequences() -> None:
    operations = {"mlstm", "mlstm_step", "fwbw", "gru", "slstm", "slstm_step"}
    assert {law.op for law in LAWS.values() if law.name == "large_grids"} == operations
