"""What a target may change in its process is put back after each case, as its import left it."""

import gc
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from conformance.base.options import RunOptions
from conformance.cases import SumCase
from conformance.formulas.judged import Judge
from conformance.frameworks import torch as of_torch
from conformance.frameworks._jax_compiled import settings_kept as jax_settings_kept
from conformance.frameworks.process_state import settings_kept
from conformance.frameworks.torch import settings_kept as torch_settings_kept
from conformance.operations import OPERATIONS
from tests.conformance.judging import judged


def settings() -> tuple:
    return (
        *(list(warnings.filters), np.geterr(), sys.getrecursionlimit(), os.getcwd()),
        *(gc.isenabled(), dict(os.environ), list(sys.path), sys.stdout, sys.stderr, sys.gettrace()),
        *(signal.getsignal(signal.SIGTERM), signal.getitimer(signal.ITIMER_REAL)[0] > 0),
    )


@pytest.mark.parametrize("raises", [False, True])
def test_settings_are_put_back(tmp_path: Path, raises: bool) -> None:
    before = settings()
    try:
        with settings_kept():
            warnings.simplefilter("ignore")
            np.seterr(all="raise")
            sys.setrecursionlimit(before[2] + 1)
            os.chdir(tmp_path)
            gc.disable()
            os.environ.clear()
            os.environ["HOME"] = "elsewhere"
            sys.path.clear()
            sys.stdout = sys.stderr = None
            sys.settrace(lambda *_: None)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.alarm(100)
            assert all(now != then for now, then in zip(settings(), before, strict=True))
            if raises:
                raise ValueError
    except ValueError:
        assert raises
    assert settings() == before


def of_torch_now() -> dict[str, Any]:
    matmul: Any = torch.backends.cuda.matmul
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "smallest": 5e-324 * float(np.float64(1)) != 0.0,
        "precision": torch.get_float32_matmul_precision(),
        "precision of a library": getattr(matmul, "fp32_precision", None),
    }


def changed_in_torch() -> None:
    torch.set_num_threads(3 if torch.get_num_threads() != 3 else 2)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("medium")
    inference = torch.inference_mode()
    inference.__enter__()
    LEFT_OPEN.append(inference)


LEFT_OPEN: list[Any] = []


def test_pytorch_s_settings_are_put_back_to_what_they_were() -> None:
    with torch_settings_kept():
        # As an import of a target might leave them.
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        before = of_torch_now()
        with torch_settings_kept():
            changed_in_torch()
            now = of_torch_now()
            assert [name for name in before if now[name] == before[name]] == ["gradients", "deterministic"]
        assert of_torch_now() == before
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this PyTorch has one setting")
def test_the_newer_setting_of_a_precision_is_put_back_too() -> None:
    matmul: Any = torch.backends.cuda.matmul
    before = of_torch_now()
    with torch_settings_kept():
        matmul.fp32_precision = "tf32"
    assert of_torch_now() == before


def test_jax_s_settings_are_put_back_to_what_they_were() -> None:
    config: Any = jax.config
    with jax_settings_kept():
        config.update("jax_debug_nans", True)
        before = dict(config.values)
        with jax_settings_kept():
            config.update("jax_debug_nans", False)
            config.update("jax_enable_x64", not config.jax_enable_x64)
            config.update("jax_default_matmul_precision", "bfloat16")
            assert config.values != before
        assert config.values == before
    assert not config.jax_debug_nans


TORCH = {
    "no gradients": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "inference": lambda: LEFT_OPEN.append(torch.inference_mode().__enter__()),
    "flushed": lambda: torch.set_flush_denormal(True),
}
JAX = {
    "64 bits off": lambda: jax.config.update("jax_enable_x64", False),
    "NaN raises": lambda: jax.config.update("jax_debug_nans", True),
    "uncompiled": lambda: jax.config.update("jax_disable_jit", True),
    "strict": lambda: jax.config.update("jax_numpy_dtype_promotion", "strict"),
}
ANY = {
    "seed": lambda: (random.seed(0), np.random.seed(0)),  # noqa: NPY002
    "alarm": lambda: signal.alarm(1),
    "environment": os.environ.clear,
    "stdout": lambda: setattr(sys, "stdout", None),
    "collection": gc.disable,
}


def torch_sum(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def jax_sum(x: jax.Array) -> jax.Array:
    return jnp.flip(jnp.cumsum(jnp.flip(x, -1), -1), -1)


TARGETS = {
    "torch": (torch_sum, torch_settings_kept, TORCH | ANY),
    "jax": (jax_sum, jax_settings_kept, JAX | ANY),
}
CHANGES = [(framework, change) for framework, (*_, changes) in TARGETS.items() for change in changes]


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize(("framework", "change"), CHANGES)
def test_a_call_that_changes_settings_is_judged_by_its_numbers(framework: str, change: str, factor: int) -> None:
    """It changes them after the last thing that it computes, so that only later calls could be different."""
    rev_cumsum, kept, changes = TARGETS[framework]

    def unkind(x: Any) -> Any:
        y = factor * rev_cumsum(x)
        changes[change]()
        return y

    with kept():
        for law, dtype in (("value", "float32"), ("gradient", "float64")):
            options = RunOptions(examples=3, shrink_seconds=0.0, max_steps=9)
            result = judged(f"rev_cumsum.{law}", dtype, options, framework=framework, rev_cumsum=unkind)
            assert result.status == ("passed" if factor == 1 else "failed"), result.reason
            natures = {each.kind.nature for each in result.counterexamples}
            assert natures <= {"number"}, result.counterexamples


def test_the_search_for_causes_puts_settings_back_too() -> None:
    def unkind(x: torch.Tensor) -> torch.Tensor:
        y = torch_sum(x)
        torch.set_grad_enabled(False)
        return y

    with torch_settings_kept():
        judge = Judge(of_torch.adapter("unkind", {"rev_cumsum": unkind}, "cpu"), OPERATIONS["rev_cumsum"], "float32")
        for seed in range(2):
            judged = judge(SumCase((2,), 3, seed=seed))
            assert (judged.value, judged.gradient) == ("right", "right")


def test_an_exception_of_any_kind_and_without_a_text_is_a_break() -> None:
    class OddError(BaseException):
        def __str__(self) -> str:
            raise ValueError

    def raises(x: Any) -> Any:
        raise OddError

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (found,) = judged("rev_cumsum.value", options=RunOptions(examples=2), rev_cumsum=raises).counterexamples
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.kind.nature == "exception"
    assert found.problem.startswith("raised OddError: (its text cannot be shown: ValueError)")
