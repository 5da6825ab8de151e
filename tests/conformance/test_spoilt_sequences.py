"""The law about a NaN in one packed sequence finds a target that multiplies the other sequences by 0."""

from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import all_laws

torch = pytest.importorskip("torch")
import torch_impl  # noqa: E402

(LAW,) = [law for law in all_laws() if law.id == "mlstm.spoilt_sequence"]


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


def judged(change: Any) -> LawResult:
    from conformance.frameworks.torch import adapter

    def mlstm(*x: Any, **options: Any) -> Any:
        found = torch_impl.mlstm(*x, **options)
        h, state = found if options.get("return_state") else (found, None)
        h = change(h)
        return h if state is None else (h, state)

    options = RunOptions(examples=40, shrink_seconds=0.0, contract=True)
    return run_law(adapter("planted", {"mlstm": mlstm}, "cpu"), LAW, "float32", options)


@pytest.mark.parametrize(("change", "where"), [(mixed_values, "h"), (MixedGradient.apply, "gradient of")])
def test_a_weight_of_0_is_not_enough(change: Any, where: str) -> None:
    result = judged(change)
    assert result.status == "failed" and "got nan" in str(result.reason), result.reason
    assert result.counterexamples[0].where.startswith(where)


def test_a_separate_sequence_keeps_the_law() -> None:
    assert judged(lambda h: h).status == "passed"
