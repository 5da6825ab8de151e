"""Products with TF32 operands are allowed where the framework's own switch turned them on, and only there."""

from collections.abc import Iterator
from functools import partial

import jax
import pytest
import torch

from conformance.base.options import RunOptions
from conformance.frameworks.jax import JaxImplementation
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.runner import run_law
from conformance.laws import all_laws
from conformance.tolerance.budget import Precision
from conformance.tolerance.designs import TensorFloat32
from tests.suite.calibration.automatic_torch import RoundedOperand
from tests.suite.definitions import mlstm_torch


class WithTF32(TorchImplementation):
    tf32 = True  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]


@pytest.fixture
def torch_switch() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_torch_allows_it_on_a_gpu_where_its_switch_is_on(torch_switch: None) -> None:
    for on in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = on
        assert TorchImplementation("target", {}, "cuda").tf32 is on
        assert TorchImplementation("target", {}, "cpu").tf32 is False


def test_jax_allows_it_on_a_gpu_where_its_switch_is_on() -> None:
    for precision, on in (("tensorfloat32", True), ("highest", False), (None, False)):
        with jax.default_matmul_precision(precision):
            assert JaxImplementation("target", {}, "cuda", None).tf32 is on
            assert JaxImplementation("target", {}, "cpu", None).tf32 is False


def test_an_operand_is_rounded_to_eleven_bits() -> None:
    ieee, tf32 = Precision("float32", 9), TensorFloat32("float32", 9)
    half = Precision("float16", 9)
    assert tf32.operand == half.operand and tf32.cancellation == half.cancellation
    assert tf32.drift == ieee.drift and tf32.growth == ieee.growth and tf32.operand > 1000 * ieee.operand


def test_a_loop_with_such_products_holds_where_they_are_allowed_and_is_broken_elsewhere() -> None:
    laws = [law for law in all_laws() if law.id in ("mlstm.value", "mlstm.gradient")]
    target = {"mlstm": partial(mlstm_torch.mlstm, operand=lambda x: RoundedOperand.apply(x, 11))}
    options = RunOptions(max_steps=130, shrink_seconds=0.0)
    for law in laws:
        assert run_law(WithTF32("loop", target, "cpu"), law, "float32", options).status == "passed"
        assert run_law(TorchImplementation("loop", target, "cpu"), law, "float32", options).status == "failed"
        assert run_law(WithTF32("loop", target, "cpu"), law, "float64", options).status == "failed"
