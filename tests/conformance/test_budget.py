"""The budget lets roundings pass, but not the faults of real kernels."""

from dataclasses import replace

import numpy as np
import pytest

import reference
from conformance import oracle
from conformance.base.dtypes import ROUNDOFF, Array, rounded
from conformance.cases import MLSTMCase
from conformance.operations.gru import GRU, gru_case
from conformance.tolerance.budget import Expected, Precision, allowed, judge

FLOAT32 = Precision("float32", steps=1)


def gradient_of(arrays: oracle.Values, cotangents: oracle.Values, precision: Precision) -> Expected:
    """The gradient of `mlstm`, with the last stage of its tolerance."""
    expected = oracle.mlstm_gradient(arrays, {}, cotangents, precision)
    return replace(expected, slack={name: np.asarray(x) for name, x in expected.slack.items()})


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_to_a_dtype_is_to_nearest(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=1000)
    error = np.abs(rounded(x, dtype) - x) / np.abs(x)
    assert error.max() <= ROUNDOFF[dtype] * (1 + 1e-9)
    assert np.array_equal(rounded(rounded(x, dtype), dtype), rounded(x, dtype))


@pytest.mark.parametrize("steps", [5, 65])
def test_the_budget_is_a_small_multiple_of_roundoff_for_well_conditioned_values(steps: int) -> None:
    """Tight: most elements may be off by less than a millionth of a millionth, in float64, of their size."""
    case = MLSTMCase(2, steps, 2, 5, 3, state="random")
    precision = Precision("float64", steps)
    arrays = oracle.values(case.arrays("float64"))
    expected = gradient_of(arrays, oracle.values(case.cotangent_arrays("float64")), precision)
    for name in "qkv":
        relative = expected.slack[name] / np.abs(expected.values[name])
        assert np.median(relative) < 1e-12, name


def test_a_gru_state_in_bfloat16_is_many_budgets_off_where_it_remembers() -> None:
    case = gru_case(1, 130, 3, (1, 1, 1, 1, 1, 1), state=True, gates="remembering")
    arrays = oracle.values(case.arrays("bfloat16"))
    precision = Precision("bfloat16", 130)
    expected = GRU.value(arrays, {}, precision)
    zero = {name: 0 * x if name.endswith("weight") else x for name, x in arrays.items()}
    exact = GRU.value(zero, {}, replace(precision, dtype="float32"))
    h = arrays["input_state"][:, 0]
    gate = 1 / (1 + np.exp(-zero["forget_input"][:, :, 0]))
    for t in range(130):
        h = rounded(gate[:, t] * h + (1 - gate[:, t]) * np.tanh(zero["input"][:, t, 0]), "bfloat16")
    got = Array(h[:, None], "float32")
    assert (
        judge(got, exact.values["state"], np.asarray(exact.slack["state"]), replace(precision, dtype="float32")).worst
        > 10
    )
    assert np.isfinite(np.asarray(expected.slack["state"])).all()


def test_the_gradient_of_either_side_passes_at_the_kink() -> None:
    """One step with m = 0 and |n·q̂| = exp(−m) = 1: dq is 0 above the floor and not 0 on it."""
    one = np.ones((1, 1, 1, 1))
    gate = np.zeros((1, 1, 1))
    arrays = {"q": one, "k": one, "v": one, "i": gate, "f": gate - np.inf}
    cotangents = {"h": one, "C": 0 * one, "n": 0 * one[0], "m": 0 * gate[0]}
    expected = gradient_of(arrays, cotangents, Precision("float32", 1))
    assert expected.kinks == 1
    for side in (0.0, 1.0):
        got = Array(np.full(one.shape, side), "float32")
        assert judge(got, expected.values["q"], 1.01 * expected.slack["q"], FLOAT32).worst <= 1, side


def test_what_overflows_the_output_dtype_may_come_back_as_an_infinity() -> None:
    assert verdict([-np.inf], [-970000.0], dtype="float16") == 0
    assert verdict([np.inf], [65503.0], slack=2.0, dtype="float16") == 0
    assert verdict([np.inf], [60000.0], slack=2.0, dtype="float16") == np.inf
    assert verdict([np.inf], [-970000.0], dtype="float16") == np.inf
    assert verdict([65504.0], [970000.0], dtype="float16") > 1


def test_a_memory_that_is_kept_drifts_like_the_root_of_its_age() -> None:
    drift = {}
    for steps in (100, 1600):
        one, gate = np.ones((1, steps, 1, 1)), np.full((1, steps, 1), -np.inf)
        arrays = {"q": one, "k": one, "v": one, "i": gate, "f": -gate}
        initial = {"C0": 3 * one[:, :1], "n0": one[:, 0], "m0": np.zeros((1, 1))}
        slack = oracle.mlstm({**arrays, **initial}, {}, Precision("float64", steps)).slack
        drift[steps] = [np.asarray(slack[name]).item() for name in "Cn"]
    assert all(3 < late / early < 5 for early, late in zip(drift[100], drift[1600], strict=True))


def test_a_tie_for_m_passes_either_way_and_what_is_no_tie_does_not() -> None:
    """Step 1 writes as much more than step 2 as it has decayed by then; step 3 writes nothing to speak of."""
    one = np.zeros((1, 3, 1, 1))
    lost = np.logaddexp(0.0, -8.0)
    arrays = {"q": one, "k": one, "v": one, "i": np.array([5 + lost, 5, -20]).reshape(1, 3, 1), "f": one[..., 0] + 8}
    cotangents = {"h": one, "C": one[:, :1], "n": one[:, 0], "m": np.ones((1, 1))}
    for apart, tied in ((0.0, True), (1e-3, False)):
        arrays["i"][0, 1] = 5 + apart
        expected = gradient_of(arrays, cotangents, Precision("float32", 3))
        assert (expected.slack["i"][0, :2, 0] > 1).all() == tied
        assert (expected.slack["f"][0, 1, 0] > 3e-4) == tied
        assert expected.slack["i"][0, 2, 0] < 1e-5 and expected.slack["m0"].item() < 1e-5


def test_a_normaliser_within_its_own_budget_of_its_floor_passes_on_either_side() -> None:
    """n·q̂ is a difference of two large terms: as computed, it may lie on either side of the floor."""
    q = np.array([1000.0, -999.0 + 1e-6]).reshape(1, 1, 1, 2) * np.sqrt(2)
    k, v, gate = np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1))
    arrays = {"q": q, "k": k, "v": v, "i": gate, "f": gate - np.inf}
    cotangents = {"h": v, "C": np.zeros((1, 1, 2, 1)), "n": np.zeros((1, 1, 2)), "m": gate[0]}
    expected = gradient_of(arrays, cotangents, Precision("float32", 1))
    assert expected.kinks == 1
    on_the_floor = Array(np.full(q.shape, 1 / np.sqrt(2)), "float32")
    assert judge(on_the_floor, expected.values["q"], 1.01 * expected.slack["q"], FLOAT32).worst <= 1


def expected_of(case: MLSTMCase, dtype: str = "float64", **arrays: np.ndarray) -> Expected:
    given = {**oracle.values(case.arrays(dtype)), **arrays}
    return gradient_of(given, oracle.values(case.cotangent_arrays(dtype)), Precision(dtype, case.steps))


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
    expected = gradient_of(given, cotangents, Precision("float64", 12))
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


def test_the_rounding_of_a_closed_gate_is_followed_through_the_weights_to_earlier_steps() -> None:
    """1 − f is a few roundoffs, so f as a rounded number changes the gradient before it more than any rounded input."""
    case = gru_case(
        2, 5, 3, (6, 3, 2, 1, 6, 2), state=True, gates="saturated", scale=2.0, cotangents="one step", seed=4264
    )
    arrays, cotangents = (oracle.values(of) for of in (case.arrays("float64"), case.cotangent_arrays("float64")))
    slack = np.asarray(GRU.gradient(arrays, {}, cotangents, Precision("float64", 5)).slack["input_state"])

    def gradient(shift: np.ndarray | float) -> np.ndarray:
        moved = {**arrays, "forget_input": arrays["forget_input"] + shift}
        found = reference.gru_backward(**moved, dy=cotangents["y"], dstate=cotangents["state"])
        return found["input_state"]

    # Of each forget gate, one roundoff of the gate: as much of its preactivation as changes the gate by it.
    f = 1 / (1 + np.exp(-arrays["forget_input"]))
    one = 2.0**-53 / (1 - f).clip(1e-12)
    exact, followed = gradient(0.0), 0
    for at in np.ndindex(f.shape):
        shift = np.zeros(f.shape)
        shift[at] = one[at]
        if one[at] > 1e-3:  # Too large for a derivative.
            continue
        error = np.abs(gradient(shift) - exact)
        assert (error <= slack + 1e-300).all(), (at, (error / slack).max())
        followed += 1
    assert followed > 20
