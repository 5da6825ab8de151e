"""Forget gates' gradients from sums that cancel: right for a stranger, to its roundoff; not for gatespec's own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import oracle
from conformance.base.options import RunOptions
from conformance.cases import FwbwCase, MLSTMCase
from conformance.frameworks import torch as of_torch
from conformance.frameworks.numpy import adapter as numpy_adapter
from conformance.frameworks.targets import load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run_law
from conformance.laws import all_laws
from conformance.laws.checker import Checker
from conformance.tolerance.budget import Expected, Precision, allowed
from conformance.tolerance.designs import AnyDesign, TensorFloat32, TensorFloat32AnyDesign
from tests.suite.definitions import mlstm_torch

LAWS = {law.id: law for law in all_laws()}
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
    target = of_torch.adapter("parallel", {"mlstm": function}, "cpu")
    target.keeps_contract = own
    return run_law(target, LAWS[law], dtype, RunOptions(max_steps=130, shrink_seconds=0.0, **options))


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


def closed_then_open(dtype: str, seed: int) -> dict[str, np.ndarray]:
    """A call of 64 steps of which a fifth forget by exp(−5) and the others keep everything."""
    arrays = oracle.values(MLSTMCase(1, 64, 2, 16, 16, seed=seed).arrays(dtype))
    shut = np.random.default_rng(seed).random(arrays["f"].shape) < 0.2
    return {**arrays, "f": np.where(shut, -5.0, 20.0)}


def worst_of_h(kind: type[Precision], dtype: str, seed: int) -> float:
    arrays = closed_then_open(dtype, seed)
    h = parallel(*(torch.tensor(arrays[name], dtype=getattr(torch, dtype)) for name in "qkvif")).double().numpy()
    expected, precision = oracle.mlstm(arrays, {}, kind(dtype, 64)), kind(dtype, 64)
    tolerance = allowed(expected.values["h"], expected.slack["h"], precision, dtype)
    return float((np.abs(h - expected.values["h"]) / tolerance).max())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_from_large_sums_are_as_inexact_as_the_sums(dtype: str) -> None:
    assert max(worst_of_h(AnyDesign, dtype, seed) for seed in range(10)) <= 1


def test_without_that_they_would_be_refused() -> None:
    # PyTorch adds float32 numbers in float64, so that their sums are rounded once.
    assert max(worst_of_h(Precision, "float64", seed) for seed in range(3)) > 1


def test_outputs_are_allowed_what_earlier_steps_contribute() -> None:
    arrays = closed_then_open("float64", 0)
    arrays["f"][:, :9] = np.inf
    own, others = (oracle.mlstm(arrays, {}, kind("float64", 64)) for kind in (Precision, AnyDesign))
    assert np.array_equal(own.slack["h"][:, :9], others.slack["h"][:, :9])
    assert np.array_equal(own.slack["m"], others.slack["m"])
    more = others.slack["h"] - own.slack["h"]
    assert (more >= 0).all() and 0 < more.max() < 1e-12 * np.abs(own.values["h"]).max()
    arrays["f"][:, 40] = -np.inf
    assert (oracle.mlstm(arrays, {}, AnyDesign("float64", 64)).slack["h"][:, 40] < own.slack["h"].max()).all()


def gradients(case: MLSTMCase, precision: Precision, **changed: np.ndarray) -> Expected:
    arrays = {**oracle.values(case.arrays(precision.dtype)), **changed}
    return oracle.mlstm_gradient(
        arrays, case.options(), oracle.values(case.cotangent_arrays(precision.dtype)), precision
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_forget_gates_are_allowed_more_and_a_reset_is_no_exception(dtype: str) -> None:
    case = MLSTMCase(2, 12, 2, 4, 3, state="random", cotangents="output only", seed=3)
    f = case.arrays(dtype)["f"].values.copy()
    f[:, 6] = -np.inf
    own, others = (gradients(case, kind(dtype, 12), f=f) for kind in (Precision, AnyDesign))
    for name in own.values:
        assert np.array_equal(own.values[name], others.values[name])
        assert (others.slack[name] >= own.slack[name]).all(), name
    assert (own.slack["f"][:, 6] == 0).all() and (others.slack["f"][:, 6] > 0).all()


def test_gates_that_forget_nothing_add_nothing_to_the_tolerance_of_gradients() -> None:
    case = MLSTMCase(2, 12, 2, 4, 3, state="random", cotangents="output only", seed=3)
    f = np.full(case.arrays("float64")["f"].shape, np.inf)
    own, others = (gradients(case, kind("float64", 12), f=f) for kind in (Precision, AnyDesign))
    for name in own.values:
        # What is lost below the smallest normal number (`oracle._flushed`) is far below any roundoff here.
        assert name == "f" or np.allclose(own.slack[name], others.slack[name], rtol=1e-12, atol=1e-30), name
    f[:, 7:] = 0.0
    own, others = (gradients(case, kind("float64", 12), f=f) for kind in (Precision, AnyDesign))
    # What the first steps read is computed without a sum; what they wrote is read with one.
    assert np.allclose(own.slack["q"][:, :7], others.slack["q"][:, :7], rtol=1e-12, atol=1e-30)
    assert (others.slack["q"] > own.slack["q"])[:, 7:].all()
    assert (others.slack["k"] > own.slack["k"])[:, :-1].all()


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
        tolerance = allowed(expected.values[name], expected.slack[name], precision, dtype)
        worst[name] = float((np.abs(times * gradient.double().numpy() - expected.values[name]) / tolerance).max())
    return worst


def test_gradients_from_large_sums_are_as_inexact_as_the_sums() -> None:
    assert max(worst_of_gradients(AnyDesign, 27228).values()) <= 0.6
    assert worst_of_gradients(Precision, 27228)["k"] > 1


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
    assert (expected.slack["f"][:, 11:] == 0).all() and (expected.slack["f"][:, 4] == 0).all()
    budget = allowed(expected.values["f"], expected.slack["f"], precision, "float64")
    largest = np.abs(expected.values["f"]).max()
    assert 0 < budget.max() < 1e-12 * largest


def test_a_packed_call_is_its_sequences() -> None:
    case = MLSTMCase(3, 0, 2, 3, 2, lengths=(4, 0, 13), state="random", seed=4)
    own, others = (gradients(case, kind("float64", 13)) for kind in (Precision, AnyDesign))
    assert others.slack["f"].shape == own.values["f"].shape and (others.slack["f"] > own.slack["f"]).all()


@pytest.mark.parametrize("correctly", [True, False])
def test_the_fwbw_interface_is_allowed_the_same(correctly: bool) -> None:
    case = FwbwCase(MLSTMCase(2, 9, 1, 5, 3, state="random", seed=1), stabilize_correctly=correctly)
    arrays, cotangents = (
        oracle.values(of) for of in (case.inner.arrays("float64"), case.inner.cotangent_arrays("float64"))
    )

    def without_head(name: str, x: np.ndarray) -> np.ndarray:
        return x[:, :, 0] if name in (*"qkvif", "h") else x[:, 0]

    flat, dflat = ({name: without_head(name, x) for name, x in of.items()} for of in (arrays, cotangents))
    config = {"stabilize_correctly": correctly, "chunk_size": None}
    own, others = (
        oracle.fwbw_gradient(flat, config, dflat, kind("float64", 9)).slack["f"] for kind in (Precision, AnyDesign)
    )
    assert (others > own).all()
    if correctly:
        headed, dheaded = arrays, cotangents
        more = [oracle.mlstm_gradient(headed, {}, dheaded, kind("float64", 9)) for kind in (Precision, AnyDesign)]
        assert np.allclose(others - own, (more[1].slack["f"] - more[0].slack["f"])[:, :, 0].reshape(own.shape))


def test_who_is_held_to_what() -> None:
    stranger, ours = numpy_adapter("stranger", {}, "cpu"), load("reference", None, "cpu")
    assert type(Checker(stranger, "float32").precision(3)) is AnyDesign
    assert type(Checker(stranger.in_run(contract=True), "float32").precision(3)) is Precision
    assert type(Checker(ours, "float32").precision(3)) is Precision
    tf32 = TensorFloat32AnyDesign("float32", 3)
    assert tf32.cancellation == TensorFloat32("float32", 3).cancellation
    assert replace(AnyDesign("float32", 3), upcasts=True).roundoff == Precision("float64", 3).roundoff
