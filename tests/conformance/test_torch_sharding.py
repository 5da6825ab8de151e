"""The law about sharded arrays, for PyTorch: processes with parts of DTensors, and the faults that it finds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.base.options import RunOptions
from conformance.frameworks.implementation import Implementation
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import law_of

pytest.importorskip("torch")


TARGET = """
import torch
from torch.distributed.tensor import DTensor

import torch_impl
from torch_impl import _distributed
from torch_impl import rev_cumsum
from torch_impl import gru

# Each process returns the part of a weight's gradient that it has, as if it were the whole.
_distributed._Layout.gradient_placements = lambda self, placements: placements


def causal_forget_matrix(forget_gates):
    y = torch_impl.causal_forget_matrix(forget_gates)
    return y * 2 if isinstance(forget_gates, DTensor) else y


def rev_cumsum_off(x):
    if isinstance(x, DTensor):
        raise RuntimeError("no strategy for this operator")
    return torch_impl.rev_cumsum_off(x)


def dtilde_matrix(igate, fgate):
    if isinstance(igate, DTensor):
        raise SystemExit(3)
    return torch_impl.dtilde_matrix(igate, fgate)


class _WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        raise NotImplementedError("only the value is served")


def mlstm_step(*arrays, **options):
    h, state = torch_impl.mlstm_step(*arrays, **options)
    return _WithoutGradient.apply(2 * h if isinstance(h, DTensor) else h), state


def mlstm(*arrays, return_state=False, **options):
    h, state = torch_impl.mlstm(*arrays, return_state=True, **options)
    h = _WithoutGradient.apply(h)
    return (h, state) if return_state else h
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Implementation]:
    path = tmp_path_factory.mktemp("target") / "planted.py"
    path.write_text(TARGET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATESPEC_TORCH_PROCESSES", "4")
        yield load(str(path), "torch", "cpu")


def judged(target: Implementation, op: str, **options: Any) -> LawResult:
    return run_law(target, law_of(f"{op}.sharding"), "float32", RunOptions(examples=4, **options))


def test_a_right_function_keeps_the_law(target: Implementation) -> None:
    result = judged(target, "rev_cumsum")
    assert (result.status, result.reason) == ("passed", None)


@pytest.mark.parametrize(("op", "said"), [("gru", "gradient of weight"), ("causal_forget_matrix", "y: ")])
def test_planted_faults(target: Implementation, op: str, said: str) -> None:
    result = judged(target, op)
    assert result.status == "failed" and result.counterexample is not None
    assert said in str(result.counterexample), result.counterexample


def test_a_target_need_not_take_dtensors(target: Implementation) -> None:
    result = judged(target, "rev_cumsum_off")
    text = "rev_cumsum_off does not take sharded arrays: RuntimeError: no strategy for this operator"
    assert result.status == "not served" and result.reason is not None and text in result.reason
    assert judged(target, "rev_cumsum_off", contract=True).status == "failed"


def test_a_wrong_value_stands_where_the_gradient_is_refused(target: Implementation) -> None:
    result = judged(target, "mlstm_step")
    assert result.status == "failed" and result.counterexample is not None
    assert "h: at [0, 0, 0]" in str(result.counterexample), result.counterexample
    right = judged(target, "mlstm")
    assert right.status == "not served" and right.reason is not None, right.counterexample
    assert "only the value is served" in right.reason


def test_processes_that_end_are_started_again(target: Implementation) -> None:
    gates, x = Array(np.ones((2, 3, 1)), "float32"), Array(np.ones((2, 3)), "float32")
    with pytest.raises(RuntimeError, match=r"^dtilde_matrix, sharding: the processes ended or hung$"):
        target.transformed("sharding", Call(operation="dtilde_matrix", arrays={"igate": gates, "fgate": gates}))
    outputs, _ = target.transformed("sharding", Call(operation="rev_cumsum", arrays={"x": x}, cotangents={"y": x}))
    assert outputs["y"].values.tolist() == [[3, 2, 1]] * 2


def test_without_processes_the_reason_is_said(target: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "GATESPEC_TORCH_PROCESSES"
    monkeypatch.delenv(variable)
    expected = f"one process of PyTorch has one part of a DTensor; {variable}=4 starts several"
    assert target.lacks("sharding") == expected
    monkeypatch.setenv(variable, "3")
    with pytest.raises(UsageError, match=rf"^{variable} is '3'; expected 2 or 4$"):
        target.lacks("sharding")
