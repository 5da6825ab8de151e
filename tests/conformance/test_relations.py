"""Relations are about two calls of a target: one that is wrong keeps those that hold of it, and breaks the others."""

from collections.abc import Callable
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from tests.conformance import judging

torch = pytest.importorskip("torch")
import torch_impl  # noqa: E402
from tests.suite.strangers.torch_loops import mlstm_loop, with_output  # noqa: E402

detached = mlstm_loop("normaliser detached")


def judged(law: str, dtype: str, function: Callable) -> LawResult:
    options = RunOptions(examples=12, max_steps=70, shrink_seconds=0.0)
    return judging.judged(f"mlstm.{law}", dtype, options, mlstm=function)


KEPT = (
    "permutation",
    "batch_invariance",
    "packing_order",
    "packing_sum",
    "packed_as_loop",
    "causality",
    "split_and_carry",
    "chunk_invariance",
    "linearity",
)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_wrong_gradient_keeps_what_holds_of_it(dtype: str) -> None:
    assert judged("gradient", dtype, detached).status == "failed"
    for law in KEPT:
        assert judged(law, dtype, detached).status == "passed", law


def test_a_wrong_value_keeps_what_holds_of_it() -> None:
    unscaled = mlstm_loop("1/sqrt(K) left out")
    assert judged("value", "float32", unscaled).status == "failed"
    for law in ("permutation", "batch_invariance", "packing_order", "causality"):
        assert judged(law, "float32", unscaled).status == "passed", law


def mixed(change: Callable[..., Any]) -> Callable:
    """The loop with the wrong gradient, and ``change(h, call's keywords)`` made of its outputs."""

    return with_output(detached, lambda h, *_, **options: change(h, options))


def leaks_between_heads(h: Any, options: dict[str, Any]) -> Any:
    return h + 1e-3 * h.cumsum(-2).detach()


def leaks_between_sequences(h: Any, options: dict[str, Any]) -> Any:
    return h + 1e-3 * h[-1:].detach() if "cu_seqlens" not in options and h.shape[0] > 1 else h


def leaks_between_tokens(h: Any, options: dict[str, Any]) -> Any:
    return h + 1e-3 * h[:1].detach() if "cu_seqlens" in options and len(h) > 1 else h


def looks_ahead(h: Any, options: dict[str, Any]) -> Any:
    return h + 1e-3 * h[:, -1:].detach() if "cu_seqlens" not in options and h.shape[1] else h


def drops_a_remainder(h: Any, options: dict[str, Any]) -> Any:
    L = options.get("chunk_size")
    if L is None or "cu_seqlens" in options or not h.shape[1] % L:
        return h
    keep = torch.arange(h.shape[1]) < h.shape[1] - h.shape[1] % L
    return h * keep[:, None, None]


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        ("permutation", leaks_between_heads),
        ("batch_invariance", leaks_between_sequences),
        ("packing_order", leaks_between_tokens),
        ("packed_as_loop", leaks_between_tokens),
        ("causality", looks_ahead),
        ("split_and_carry", looks_ahead),
        ("chunk_invariance", drops_a_remainder),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_fault_in_a_relation_is_found_in_a_target_that_is_wrong_anyway(law: str, fault: Any, dtype: str) -> None:
    assert judged(law, dtype, mixed(fault)).status == "failed"


def test_a_gradient_that_does_not_permute_is_found() -> None:
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Any) -> Any:
            return v.clone()

        @staticmethod
        def backward(ctx: Any, dv: Any) -> Any:
            return dv * torch.linspace(1.0, 1.01, dv.shape[-2], dtype=dv.dtype)[:, None]

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return detached(q, k, Reversed.apply(v), i, f, **options)

    result = judged("permutation", "float32", mlstm)
    assert result.status == "failed" and result.counterexamples[0].where == "gradient of v"


class MixedGradient(torch.autograd.Function):
    """The identity, whose gradient adds 0 times the sum over all tokens."""

    @staticmethod
    def forward(ctx: Any, h: Any) -> Any:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, dh: Any) -> Any:
        return dh + 0 * dh.sum(0)


def mixed_values(h: Any) -> Any:
    return h + 0 * h.detach().sum(0)


def spoilt(change: Any) -> LawResult:
    mlstm = with_output(torch_impl.mlstm, lambda h, *_, **options: change(h))
    options = RunOptions(examples=40, shrink_seconds=0.0, contract=True)
    return judging.judged("mlstm.spoilt_sequence", "float32", options, mlstm=mlstm)


@pytest.mark.parametrize(("change", "where"), [(mixed_values, "h"), (MixedGradient.apply, "gradient of")])
def test_a_weight_of_0_is_not_enough(change: Any, where: str) -> None:
    result = spoilt(change)
    assert result.status == "failed" and "got nan" in str(result.reason), result.reason
    assert result.counterexamples[0].where.startswith(where)


def test_a_separate_sequence_keeps_the_law() -> None:
    assert spoilt(lambda h: h).status == "passed"
