"""Once a law is broken, what is wrong by far is told before its tolerance is known; what is shown is known in full."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import torch_impl
from conformance.base.dtypes import Array
from conformance.base.options import RunOptions
from conformance.cases import from_json
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run
from conformance.judge.search import FAR, retried
from conformance.laws.checker import Checker
from conformance.tolerance.staged import Staged

UNIT = 2.0**-24


def _judged(got: list[float], expected: list[float], ways: list[float], far: float) -> tuple[bool, int]:
    """Whether an array is right, and how many ways to compute it were tried, each with one tolerance."""
    checker, tried = Checker(TorchImplementation("stranger", {}, "cpu"), "float32", far=far), []

    def stages() -> Iterator[np.ndarray]:
        yield np.zeros(len(expected))
        for tolerance in ways:
            tried.append(tolerance)
            yield np.full(len(expected), tolerance)

    checker.close("y", Array(np.array(got, np.float32), "float32"), np.array(expected), Staged(stages), 1)
    return not checker.breaks, len(tried)


@pytest.mark.parametrize(("got", "most"), [(1.1, 1), (math.nan, 0), (1.00001, 4)])
def test_what_is_wrong_by_far_is_told_early(got: float, most: int) -> None:
    ways = [UNIT, UNIT, 2 * UNIT, 3 * UNIT]
    assert _judged([got, 2.0], [1.0, 2.0], ways, math.inf) == (False, 4)
    assert _judged([got, 2.0], [1.0, 2.0], ways, FAR) == (False, most)


def test_what_a_later_way_allows_is_right() -> None:
    # Its largest element is the rest of terms that cancel: any error is far off. One way knows their size.
    assert _judged([1e-9, 0.0], [1e-17, 0.0], [1e-10, 1e-8], FAR) == (True, 2)
    assert _judged([1.001, 2.0], [1.0, 2.0], [1e-4, 1e-4, 1e-2], FAR) == (True, 3)


def test_a_shape_is_wrong_whatever_the_tolerance() -> None:
    assert _judged([1.0], [1.0, 2.0], [UNIT] * 4, math.inf) == (False, 0)


def test_the_smallest_case_is_compared_in_full() -> None:
    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> Any:
        return torch_impl.mlstm(q, k, v * 1.02 - (0.02 * v).detach(), i, f, **options)

    target = TorchImplementation("stranger", {"mlstm": mlstm}, "cpu")
    options = RunOptions(ops=("mlstm",), laws=("gradient",), dtypes=("float32",), examples=6, max_steps=33)
    (result,) = run(target, options)
    assert result.status == "failed" and torch.is_grad_enabled()
    for shown in result.counterexamples:
        again, _ = retried(target, result.law, "float32", from_json(shown.stored))
        (same,) = [each for each in again if each.kind == shown.kind]
        assert (shown.allowed, shown.expected, shown.index) == (same.allowed, same.expected, same.index)
        assert shown.worst is not None
