"""The tolerance of gates' gradients: what automatic differentiation adds and cancels passes, and nothing else does."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import oracle
from conformance.base.dtypes import ROUNDOFF
from conformance.cases import MLSTMCase
from conformance.oracle._stabiliser_paths import candidates_for_m, stabiliser_paths
from conformance.tolerance.budget import Expected, Precision, allowed


def expected_of(case: MLSTMCase, dtype: str = "float64", **arrays: np.ndarray) -> Expected:
    given = {**oracle.values(case.arrays(dtype)), **arrays}
    cotangents = oracle.values(case.cotangent_arrays(dtype))
    return oracle.mlstm_gradient(given, {}, cotangents, Precision(dtype, case.steps))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_an_exact_zero_that_is_a_sum_of_terms_may_be_off_by_their_roundoff(dtype: str) -> None:
    """The first forget gate has nothing to forget, but decides with m over terms that cancel."""
    case = MLSTMCase(2, 9, 2, 5, 3, gates="remembering", cotangents="output only", seed=1)
    given = case.arrays(dtype)
    f = given["f"].values.copy()
    i = given["i"].values.copy()
    i[:, 0] = -9.0
    expected = expected_of(case, dtype, i=i, f=f)
    first = expected.values["f"][:, 0]
    gate = 1 / (1 + np.exp(f[:, 0]))
    dh, h_terms = case.cotangent_arrays(dtype)["h"].values, 1e-3
    assert (first == 0).all()
    smallest = ROUNDOFF["float64" if dtype == "float64" else "float32"] * gate * np.abs(dh).min() * h_terms
    assert (expected.slack["f"][:, 0] > smallest).all()


def test_behind_a_hard_reset_zero_is_exact() -> None:
    case = MLSTMCase(1, 12, 2, 4, 3, state="random", cotangents="dense", seed=3)
    f = case.arrays("float64")["f"].values.copy()
    f[:, 6] = -np.inf
    cotangents = oracle.values(case.cotangent_arrays("float64"))
    cotangents["h"][:, :6] = 0
    given = {**oracle.values(case.arrays("float64")), "f": f}
    expected = oracle.mlstm_gradient(given, {}, cotangents, Precision("float64", 12))
    for name in "kvif":
        assert (expected.values[name][:, :6] == 0).all() and (expected.slack[name][:, :6] == 0).all(), name
    assert (expected.slack["C0"] == 0).all() and (expected.slack["n0"] == 0).all()
    assert (expected.slack["f"][:, 6] == 0).all(), "the gate that resets has nothing to weigh"
    assert (expected.slack["f"][:, 7:] > 0).all()


def test_a_flipped_sign_of_a_small_gradient_is_found() -> None:
    """Gradients of forget gates that are a millionth of the largest are still held to many digits."""
    case = MLSTMCase(2, 60, 3, 5, 4, state="random", cotangents="output only", seed=5)
    for dtype, digits in (("float64", 1e-9), ("float32", 1e-2)):
        expected = expected_of(case, dtype)
        for name in ("i", "f"):
            value = np.abs(expected.values[name])
            budget = allowed(value, expected.slack[name], Precision(dtype, 60), dtype)
            small = (value > 0) & (value < 1e-3 * value.max())
            assert small.any() and np.median(budget[small] / value[small]) < digits, (name, dtype)


def test_paths_end_at_what_attained_the_stabiliser() -> None:
    """m is written at step 1, carried at 2 and 3, and the cotangent of the last m reaches the write and both gates."""
    a = np.array([-1.0, -1.0, -1.0]).reshape(3, 1, 1)
    i = np.array([5.0, 0.0, 0.0]).reshape(3, 1, 1)
    m = np.array([0.0, 5.0, 4.0, 3.0]).reshape(4, 1, 1)
    carry, write = candidates_for_m(a, i, m)
    assert carry.ravel().tolist() == [False, True, True] and write.ravel().tolist() == [True, False, False]
    paths = stabiliser_paths(np.full(a.shape, 4.0), np.full((1, 1), 3.0), carry, write)
    assert paths.log_forget.ravel() == pytest.approx([0.0, np.hypot(5.0, 4.0), 5.0])
    assert paths.write.ravel() == pytest.approx([np.sqrt(57), 0.0, 0.0])
    assert paths.m0 == 0


def test_what_is_not_finite_on_the_way_takes_no_tolerance_away() -> None:
    a, i = np.zeros((2, 1, 1)), np.full((2, 1, 1), -5.0)
    paths = stabiliser_paths(np.array([np.inf, 1.0]).reshape(2, 1, 1), np.zeros((1, 1)), a == 0, i == 0)
    assert paths.log_forget.ravel().tolist() == [1.0, 1.0] and paths.m0 == 1.0


def test_either_candidate_of_a_near_tie_may_receive_the_roundings() -> None:
    i = np.array([1e4, 1e4 - 1.0, 5e3]).reshape(3, 1, 1)
    m = np.maximum.accumulate(np.concatenate([np.zeros((1, 1, 1)), i]), axis=0)
    carry, write = candidates_for_m(np.zeros(i.shape), i, m)
    assert carry.ravel().tolist() == [False, True, True] and write.ravel().tolist() == [True, True, False]


def test_an_empty_memory_is_carried() -> None:
    nothing = np.full((1, 1, 1), -np.inf)
    with np.errstate(invalid="ignore"):
        carry, _ = candidates_for_m(nothing, nothing, np.concatenate([nothing, nothing]))
    assert carry.all()


@pytest.mark.parametrize("stabilize_correctly", [True, False])
def test_the_fwbw_interface_has_the_same_terms(stabilize_correctly: bool) -> None:
    case = MLSTMCase(2, 9, 1, 5, 3, gates="remembering", cotangents="output only", seed=1)
    arrays, cotangents = oracle.values(case.arrays("float64")), oracle.values(case.cotangent_arrays("float64"))
    arrays["i"][:, 0] = -9.0
    flat = {name: x[:, :, 0] for name, x in arrays.items()}
    config = {"stabilize_correctly": stabilize_correctly, "chunk_size": None}
    expected = oracle.fwbw_gradient(flat, config, {"h": cotangents["h"][:, :, 0]}, Precision("float64", 9))
    assert (expected.values["f"][:, 0] == 0).all() and (expected.slack["f"][:, 0] > 1e-20).all()


def test_a_case_without_steps_has_no_paths() -> None:
    case = replace(MLSTMCase(1, 1, 1, 2, 2, state="random"), S=0)
    assert (expected_of(case).slack["m0"] < 1e-13).all()
