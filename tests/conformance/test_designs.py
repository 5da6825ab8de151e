"""What a stranger's design may lose: sums that cancel, products flushed to 0, operands in TF32; not gatespec's own."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch

from conformance import oracle
from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase
from conformance.frameworks.jax import JaxImplementation
from conformance.frameworks.numpy import adapter as numpy_adapter
from conformance.frameworks.targets import load
from conformance.frameworks.torch import TorchImplementation
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import all_laws
from conformance.laws.checker import Checker
from conformance.rows import foreign
from conformance.rows.row import Row
from conformance.specification.changed import changed
from conformance.tolerance.budget import Precision, allowed
from conformance.tolerance.designs import AnyDesign, TensorFloat32, TensorFloat32AnyDesign
from tests.conformance import judging
from tests.suite.calibration.automatic_torch import RoundedOperand
from tests.suite.definitions import mlstm_torch

MODERATE = 30.0
"""Size of the gates that the form below serves: a difference of cumulative sums of larger ones has lost its digits."""


def parallel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, **options: Any
) -> Any:
    """The parallel form as public kernels have it: ``D_tj = B_t − B_j + i_j``."""
    if not (torch.cat([i.flatten(), f.flatten()]).abs() <= MODERATE).all():
        raise NotImplementedError("it does not serve gates that large")
    if options.pop("cu_seqlens", None) is not None:
        raise NotImplementedError("it does not serve packed sequences")
    options.pop("chunk_size", None)
    return mlstm_torch.mlstm_parallel(q, k, v, i, f, running_sums=True, **options)


class FlippedWhereSmall(torch.autograd.Function):
    """The gates themselves; of their gradient, what is below a thousandth of the largest has the wrong sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (dx,) = gradients
        return torch.where(dx.abs() < 1e-3 * dx.abs().max(), -dx, dx) if dx.numel() else dx


def flipped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, **options: Any) -> Any:
    return parallel(q, k, v, i, FlippedWhereSmall.apply(f), **options)


def leaking(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, **options: Any) -> Any:
    """A loop whose hard resets let a millionth of the memory through."""
    if options.pop("cu_seqlens", None) is not None:
        raise NotImplementedError("it does not serve packed sequences")
    return mlstm_torch.mlstm(q, k, v, i, torch.where(torch.isneginf(f), f.new_tensor(-14.0), f), **options)


def judged(function: Any, law: str, dtype: str, own: bool = False, **options: Any) -> LawResult:
    given = RunOptions(max_steps=130, shrink_seconds=0.0, **options)
    return judging.judged(law, dtype, given, own=own, mlstm=function)


@pytest.mark.parametrize("law", ["mlstm.gradient", "mlstm.linearity"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_parallel_form_with_cumulative_sums_holds(dtype: str, law: str) -> None:
    result = judged(parallel, law, dtype)
    assert result.status == "passed" and result.examples >= 10, result.reason
    assert result.worst is not None and 0 < result.worst <= 1


@pytest.mark.parametrize("kept", [{"own": True}, {"contract": True}])
def test_it_does_not_keep_gatespecs_contract(kept: dict[str, bool]) -> None:
    result = judged(parallel, "mlstm.gradient", "float64", **kept)
    assert result.status == "failed"
    assert {found.kind.where for found in result.counterexamples} == {"gradient of f"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_flipped_sign_of_small_gradients_is_found(dtype: str) -> None:
    result = judged(flipped, "mlstm.gradient", dtype)
    assert result.status == "failed" and result.worst is not None and result.worst > 10
    assert {found.kind.where for found in result.counterexamples} == {"gradient of f"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_reset_that_leaks_a_millionth_is_found(dtype: str) -> None:
    result = judged(leaking, "mlstm.gradient", dtype)
    assert result.status == "failed"


def judged_with(row: Row, law: str, own: bool) -> LawResult:
    """Judge the specification with a row changed, in float64."""
    version = changed(row)
    functions = {name: version.function(name) for name in (row.op, f"{row.op}_backward")}
    given = RunOptions(max_steps=130, shrink_seconds=0.0)
    return judging.judged(f"{row.op}.{law}", "float64", given, framework="numpy", own=own, **functions)


@pytest.mark.parametrize("law", ["value", "gradient"])
@pytest.mark.parametrize("row", foreign.ROWS, ids=lambda row: f"{row.op}: {row.name}")
def test_a_foreign_row_breaks_no_law_for_a_stranger(row: Row, law: str) -> None:
    result = judged_with(row, law, own=False)
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("row", foreign.ROWS[:2], ids=lambda row: row.name)
def test_gatespecs_own_packages_may_not_compute_as_a_foreign_row(row: Row) -> None:
    assert judged_with(row, "gradient", own=True).status == "failed"


def worst_of_gradients(kind: type[Precision], seed: int, times: float = 1.0) -> dict[str, float]:
    """The errors of the parallel form in float32 over their tolerances, where each gate is half closed.

    Args:
        times: by which its gradients are multiplied.
    """
    case, dtype = MLSTMCase(1, 130, 3, 17, 2, state="random", gates="small", held=0.2, seed=seed), "float32"
    given, cotangents = oracle.values(case.arrays(dtype)), oracle.values(case.cotangent_arrays(dtype))
    leaves = {name: torch.tensor(x, dtype=torch.float32, requires_grad=True) for name, x in given.items()}
    state = tuple(leaves[name] for name in ("C0", "n0", "m0"))
    h, last = parallel(*(leaves[name] for name in "qkvif"), initial_state=state, return_state=True)
    reached = [torch.tensor(cotangents[name], dtype=torch.float32) for name in ("h", *"Cnm")]
    found = torch.autograd.grad([h, *last], list(leaves.values()), reached)
    precision = kind(dtype, 130)
    expected, worst = oracle.mlstm_gradient(given, {}, cotangents, precision), {}
    for name, gradient in zip(leaves, found, strict=True):
        tolerance = allowed(expected.values[name], np.asarray(expected.slack[name]), precision, dtype)
        worst[name] = float((np.abs(times * gradient.double().numpy() - expected.values[name]) / tolerance).max())
    return worst


def test_gradients_from_large_sums_are_as_inexact_as_the_sums() -> None:
    assert max(worst_of_gradients(AnyDesign, 27228).values()) <= 0.6
    worst = worst_of_gradients(Precision, 27228)
    assert worst["k"] > 1 and worst["f"] > 3


def test_gradients_that_are_a_thousandth_off_are_found_next_to_large_sums() -> None:
    assert min(worst_of_gradients(AnyDesign, 27228, times=1.001)[name] for name in "qkv") > 1.5


def test_it_is_roundoff_of_later_terms() -> None:
    """Behind the last cotangent there is nothing to sum; a gate that is +∞ passes nothing on."""
    case = MLSTMCase(1, 20, 1, 4, 3, gates="ordinary", cotangents="output only", seed=2)
    arrays, cotangents = (oracle.values(of) for of in (case.arrays("float64"), case.cotangent_arrays("float64")))
    cotangents["h"][:, 11:] = 0
    arrays["f"][:, 4] = np.inf
    precision = AnyDesign("float64", 20)
    expected = oracle.mlstm_gradient(arrays, {}, cotangents, precision)
    slack = np.asarray(expected.slack["f"])
    assert (slack[:, 11:] == 0).all() and (slack[:, 4] == 0).all()
    budget = allowed(expected.values["f"], slack, precision, "float64")
    largest = np.abs(expected.values["f"]).max()
    assert 0 < budget.max() < 1e-12 * largest


def test_who_is_held_to_what() -> None:
    stranger, ours = numpy_adapter("stranger", {}, "cpu"), load("reference", None, "cpu")
    assert type(Checker(stranger, "float32").precision(3)) is AnyDesign
    assert type(Checker(stranger.in_run(contract=True), "float32").precision(3)) is Precision
    assert type(Checker(ours, "float32").precision(3)) is Precision
    tf32 = TensorFloat32AnyDesign("float32", 3)
    assert tf32.cancellation == TensorFloat32("float32", 3).cancellation
    assert replace(AnyDesign("float32", 3), upcasts=True).roundoff == Precision("float64", 3).roundoff


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


def test_a_loop_with_such_products_holds_where_they_are_allowed_and_is_broken_elsewhere() -> None:
    laws = [law for law in all_laws() if law.id in ("mlstm.value", "mlstm.gradient")]
    target = {"mlstm": partial(mlstm_torch.mlstm, operand=lambda x: RoundedOperand.apply(x, 11))}
    options = RunOptions(max_steps=130, shrink_seconds=0.0)
    for law in laws:
        assert run_law(WithTF32("loop", target, "cpu"), law, "float32", options).status == "passed"
        assert run_law(TorchImplementation("loop", target, "cpu"), law, "float32", options).status == "failed"
        assert run_law(WithTF32("loop", target, "cpu"), law, "float64", options).status == "failed"
