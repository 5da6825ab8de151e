"""What the budget lets pass and what it does not: roundings do, the faults of real kernels do not."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import oracle
from conformance.budget import Precision, judge, response
from conformance.cases import GRUCase, MLSTMCase
from conformance.dtypes import ROUNDOFF, Array, rounded

FLOAT32 = Precision("float32", steps=1)


def verdict(got: list[float], expected: list[float], slack: float = 0.0, dtype: str = "float32") -> float:
    array = Array(np.array(got), dtype)
    return judge(array, np.array(expected), np.full(len(expected), slack), FLOAT32).worst


def test_one_rounding_of_the_output_passes_and_two_do_not() -> None:
    u = ROUNDOFF["bfloat16"]
    assert verdict([1 + 0.9 * u], [1.0], dtype="bfloat16") < 1
    assert verdict([1 + 2 * u], [1.0], dtype="bfloat16") > 1


@pytest.mark.parametrize(
    ("got", "expected"),
    [(np.nan, 1.0), (np.nan, np.inf), (np.inf, 1.0), (1.0, np.inf), (-np.inf, np.inf), (1.0, np.nan), (1e-30, 0.0)],
)
def test_what_is_not_the_expected_kind_of_number_fails_whatever_the_slack(got: float, expected: float) -> None:
    slack = 0.0 if got == 1e-30 else 1e6
    assert verdict([got], [expected], slack) > 1


@pytest.mark.parametrize("same", [np.inf, -np.inf, np.nan])
def test_the_same_infinity_and_the_oracles_own_nan_pass(same: float) -> None:
    assert verdict([same], [same]) == 0


def test_a_wrong_shape_fails_with_both_shapes_named() -> None:
    found = judge(Array(np.zeros((2, 3)), "float32"), np.zeros((3, 2)), np.zeros((3, 2)), FLOAT32)
    assert found.worst == np.inf and found.reason == "shape [2, 3], expected [3, 2]"


def test_the_first_bad_element_is_named() -> None:
    found = judge(Array(np.array([[1.0, 1.0], [2.0, 3.0]]), "float32"), np.ones((2, 2)), np.zeros((2, 2)), FLOAT32)
    assert found.index == (1, 0) and found.got == 2.0 and found.expected == 1.0


def test_an_element_that_responds_to_nothing_has_no_budget() -> None:
    draws = np.array([[0.0, 1.1], [0.0, 0.8]])
    assert (response(np.array([0.0, 1.0]), draws) > 0).tolist() == [False, True]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_to_a_dtype_is_to_nearest(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=1000)
    error = np.abs(rounded(x, dtype) - x) / np.abs(x)
    assert error.max() <= ROUNDOFF[dtype] * (1 + 1e-9)
    assert np.array_equal(rounded(rounded(x, dtype), dtype), rounded(x, dtype))


def test_rounding_keeps_infinities_and_axes() -> None:
    assert rounded(-np.inf, "bfloat16") == -np.inf
    assert rounded(1.0, "bfloat16").shape == ()


@pytest.mark.parametrize("steps", [5, 65])
def test_the_budget_is_a_small_multiple_of_roundoff_for_well_conditioned_values(steps: int) -> None:
    """Tight: most elements may be off by less than a millionth of a millionth, in float64, of their size."""
    case = MLSTMCase(2, steps, 2, 5, 3, state="random")
    precision = Precision("float64", steps)
    arrays = oracle.values(case.arrays("float64"))
    expected = oracle.mlstm_gradient(arrays, {}, oracle.values(case.cotangent_arrays("float64")), precision)
    for name in "qkv":
        relative = expected.slack[name] / np.abs(expected.values[name])
        assert np.median(relative) < 1e-12, name


def test_a_gru_state_in_bfloat16_is_many_budgets_off_where_it_remembers() -> None:
    case = GRUCase(1, 130, 3, (1, 1, 1, 1, 1, 1), state=True, gates="remembering")
    arrays = oracle.values(case.arrays("bfloat16"))
    precision = Precision("bfloat16", 130)
    expected = oracle.gru(arrays, {}, precision)
    zero = {name: 0 * x if name.endswith("weight") else x for name, x in arrays.items()}
    exact = oracle.gru(zero, {}, replace(precision, dtype="float32"))
    h = arrays["input_state"][:, 0]
    gate = 1 / (1 + np.exp(-zero["forget_input"][:, :, 0]))
    for t in range(130):
        h = rounded(gate[:, t] * h + (1 - gate[:, t]) * np.tanh(zero["input"][:, t, 0]), "bfloat16")
    got = Array(h[:, None], "float32")
    assert judge(got, exact.values["state"], exact.slack["state"], replace(precision, dtype="float32")).worst > 10
    assert np.isfinite(expected.slack["state"]).all()


def test_the_gradient_of_either_side_passes_at_the_kink() -> None:
    """One step with m = 0 and |n·q̂| = exp(−m) = 1: dq is 0 above the floor and not 0 on it."""
    one = np.ones((1, 1, 1, 1))
    gate = np.zeros((1, 1, 1))
    arrays = {"q": one, "k": one, "v": one, "i": gate, "f": gate - np.inf}
    cotangents = {"h": one, "C": 0 * one, "n": 0 * one[0], "m": 0 * gate[0]}
    expected = oracle.mlstm_gradient(arrays, {}, cotangents, Precision("float32", 1))
    assert expected.kinks == 1
    for side in (0.0, 1.0):
        got = Array(np.full(one.shape, side), "float32")
        assert judge(got, expected.values["q"], 1.01 * expected.slack["q"], FLOAT32).worst <= 1, side
