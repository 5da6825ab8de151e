"""A function that PyTorch cannot transform is not wrong for it, unless it is gatespec's own; wrong values are."""

from collections.abc import Callable
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging

torch = pytest.importorskip("torch")


def whole(x: Any) -> Any:
    return x.flip(-1).cumsum(-1).flip(-1)


def branching(x: Any) -> Any:
    return whole(x) if x.numel() == 0 or x.sum() > 0 else whole(x) + 0.0


def not_while_compiled(x: Any) -> Any:
    if torch.compiler.is_compiling():
        raise NotImplementedError("it is not to be compiled")
    return whole(x)


def refusing(x: Any) -> Any:
    raise NotImplementedError("it does not serve this")


def wrong_while_compiled(x: Any) -> Any:
    return 2 * whole(x) if torch.compiler.is_compiling() else whole(x)


def judged(function: Callable, law: str, *, own: bool = False) -> LawResult:
    return judging.judged(f"rev_cumsum.{law}", options=RunOptions(examples=8), own=own, rev_cumsum=function)


LAWS = ("compile", "compile_gradient")


@pytest.mark.parametrize("law", LAWS)
def test_a_function_without_a_break_is_judged(law: str) -> None:
    assert judged(whole, law).status == "passed"
    assert judged(wrong_while_compiled, law).status == "failed"


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (branching, "rev_cumsum cannot be compiled as one graph: Data-dependent branching"),
        (not_while_compiled, "it is not to be compiled"),
    ],
)
def test_a_break_is_told_and_not_called_wrong(law: str, function: Callable, reason: str) -> None:
    result = judged(function, law)
    assert result.status == "not served" and reason in (result.reason or "")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("function", [branching, not_while_compiled])
def test_a_break_fails_where_the_function_is_the_projects_own(law: str, function: Callable) -> None:
    result = judged(function, law, own=True)
    assert result.status == "failed" and result.counterexamples[0].kind.where == "Unsupported"


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("law", LAWS)
def test_a_refused_case_is_refused_compiled_as_well(law: str, own: bool) -> None:
    result = judged(refusing, law, own=own)
    assert result.status == "not served" and "it does not serve this" in (result.reason or "")


class _WithoutRules(torch.autograd.Function):
    """A function as most are written, which ``torch.func`` refuses."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return whole(x)

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return d.cumsum(-1)


class _WithoutMapping(torch.autograd.Function):
    """A function that ``torch.func`` differentiates and refuses to map."""

    @staticmethod
    def forward(x: Any) -> Any:
        return whole(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return d.cumsum(-1)


@pytest.mark.parametrize(
    ("function", "law", "reason"),
    [
        (_WithoutRules.apply, "functional", "has no rule for this (functional): In order to use"),
        (_WithoutRules.apply, "vmap", "has no rule for this (vmap): In order to use"),
        (_WithoutRules.apply, "compile_gradient", "passed"),
        (_WithoutMapping.apply, "functional", "passed"),
        (_WithoutMapping.apply, "vmap", "has no rule for this (vmap): You tried to vmap over"),
    ],
)
def test_a_missing_rule_is_told_and_not_called_wrong(function: Callable, law: str, reason: str) -> None:
    result = judged(function, law)
    if reason == "passed":
        assert result.status == "passed"
        return
    assert result.status == "not served" and reason in (result.reason or "")
    own = judged(function, law, own=True)
    assert own.status == "failed" and own.counterexamples[0].kind.where == "RuntimeError"
