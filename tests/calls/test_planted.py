"""The laws of this folder are broken by a package that has just the fault that they are about."""

import dataclasses
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from tests.calls.packages import adapted
from tests.calls.registry import all_laws

torch = pytest.importorskip("torch")
LAWS = {law.id: law for law in all_laws()}


def judged(law: str, dtype: str = "float32", examples: int = 8, **functions: Any) -> LawResult:
    return run_law(adapted("torch", "planted", functions), LAWS[law], dtype, RunOptions(examples=examples))


def test_a_backend_that_is_named_and_does_not_run():
    import torch_impl

    def ignores(*args: Any, kernel_backend: Any = None, **kwargs: Any) -> Any:
        return torch_impl.mlstm_step(*args, **kwargs)

    def says(*args: Any, **kwargs: Any) -> Any:
        explanation = torch_impl.explain_backend(*args, **kwargs)
        return dataclasses.replace(explanation, against=dict.fromkeys(explanation.against, "it is Tuesday"))

    honest = {"mlstm_step": torch_impl.mlstm_step, "explain_backend": torch_impl.explain_backend}
    assert judged("mlstm_step.backend", **honest).status == "passed"
    assert judged("mlstm_step.bad_backend", **honest).status == "passed"
    ignored = judged("mlstm_step.backend", **{**honest, "mlstm_step": ignores})
    assert ignored.status == "failed" and "launched no kernel" in str(ignored.reason)
    assert judged("mlstm_step.bad_backend", **{**honest, "mlstm_step": ignores}).status == "failed"
    other_reason = judged("mlstm_step.backend", **{**honest, "explain_backend": says})
    assert other_reason.status == "failed" and "it is Tuesday" in str(other_reason.reason)
    no_choice = judged("mlstm_step.backend", mlstm_step=lambda q, k, v, i, f, state, *, eps=0.0: None)
    assert no_choice.status == "skipped" and "takes no kernel_backend" in str(no_choice.reason)


def test_a_launch_is_seen_wherever_triton_starts_one(monkeypatch):
    pytest.importorskip("triton")
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

    from tests.calls.torch_launches import launches

    def summing() -> None: ...

    monkeypatch.setattr(GridExecutor, "__call__", lambda self: None)
    monkeypatch.setattr(JITFunction, "run", lambda self, **kwargs: None)
    with launches() as seen:
        GridExecutor(summing, (), (1,))()
        JITFunction(summing).run(grid=(1,), warmup=False)
        JITFunction(summing).run(grid=(1,), warmup=True)
    GridExecutor(summing, (), (1,))()
    assert seen == ["summing", "summing"]
