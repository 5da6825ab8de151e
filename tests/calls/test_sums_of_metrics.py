"""Sums of metrics: wide enough, never wrapped, and refused where minibatches do not fit together."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tests.calls.wings import INSTALLED, Wing

FORMS = ("accumulate_gradients", "accumulate_gradients_loop", "accumulate_gradients_scan")


@pytest.fixture(params=INSTALLED)
def wing(request):
    """Without 64-bit mode in JAX, which a test before may have turned on."""
    with __import__("jax").enable_x64(False) if request.param == "jax_impl" else nullcontext():
        yield Wing(request.param)


def accumulated(wing, form, part_of, n, params=None):
    """Metrics and mutable variables over n minibatches of a loss that returns ``part_of(minibatch, index)`` as them.

    The index counts the calls; in JAX's scan, which traces the loss a few times, it says nothing.
    """
    state = SimpleNamespace(params={"w": wing.array((2,), "float32")} if params is None else params, apply_fn=None)
    rng = __import__("jax").random.key(7) if wing.name == "jax_impl" else 7
    count = iter(range(10**6))

    def loss_fn(params, apply_fn, minibatch, rng):
        return (params["w"] * minibatch["x"][0]).sum(), part_of(minibatch, next(count))

    keywords = {}
    if wing.name == "reference":
        # Central differences would call the loss many times for each minibatch.
        def value_and_grad(loss_fn):
            return lambda params, *args: (loss_fn(params, *args), {name: 0 * p for name, p in params.items()})

        keywords = {"value_and_grad": value_and_grad}
    batch = {"x": wing.array((n, 2)), "count": wing.array(list(range(n)), "int32")}
    _, metrics, mutable = getattr(wing, form)(state, batch, rng, n, loss_fn, **keywords)
    return metrics, mutable


def scalar(wing, value, dtype):
    """A value of a dtype that NumPy may lack."""
    if wing.name == "torch_impl" or dtype == "bfloat16":
        if wing.name == "torch_impl":
            torch = __import__("torch")
            return torch.tensor([value], dtype=getattr(torch, dtype))
        ml_dtypes = pytest.importorskip("ml_dtypes")
        value = np.array([value], ml_dtypes.bfloat16)
        return value if wing.name == "reference" else __import__("jax").numpy.asarray(value)
    return np.array([value], dtype) if wing.name == "reference" else wing.array([value], dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("value", "dtype", "n", "total"),
    [(1.01, "bfloat16", 600, 606), (1.0, "bfloat16", 600, 600), (1000.0, "float16", 200, 200_000)],
)
def test_metrics_of_16_bits_are_summed_in_32(wing, form, value, dtype, n, total):
    metrics, _ = accumulated(wing, form, lambda *_: ({"m": scalar(wing, value, dtype)}, None), n)
    found = metrics["m"]
    assert str(found.dtype).rpartition(".")[2] == "float32"
    # bfloat16 has no 1.01 but 1.0078125.
    np.testing.assert_allclose(np.asarray(found), [total], rtol=3e-3)


@pytest.mark.parametrize("form", FORMS)
def test_complex_metrics_keep_both_parts(wing, form):
    metrics, _ = accumulated(wing, form, lambda *_: ({"m": scalar(wing, 1.5 - 2j, "complex64")}, None), 3)
    assert str(metrics["m"].dtype).rpartition(".")[2] == "complex64"
    np.testing.assert_array_equal(np.asarray(metrics["m"]), [4.5 - 6j])


LIMITS = [
    ("int32", 2**30, 3, 3 * 2**30, 2**31 - 1),
    ("int32", -(2**30), 3, -3 * 2**30, -(2**31)),
    ("uint32", 2**31 - 1, 3, 3 * (2**31 - 1), 2**32 - 1),
    ("uint32", 2**31 + 5, 1, 2**31 + 5, 2**31 + 5),
    ("uint32", 3 * 10**9, 1, 3 * 10**9, 3 * 10**9),
    ("int64", 2**62, 3, 2**63 - 1, None),
    ("int64", -(2**62), 3, -(2**63), None),
    ("uint64", 2**63, 3, 2**64 - 1, None),
    ("uint64", 2**62, 3, 3 * 2**62, None),
]
"""For metrics of a dtype and value, and a number of minibatches: the sum in 64 bits, and in JAX without 64-bit mode."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "value", "n", "wide", "narrow"), LIMITS)
def test_sums_of_integers_end_at_the_end_of_their_range(wing, form, dtype, value, n, wide, narrow):
    if wing.name == "jax_impl":
        jax = __import__("jax")
        with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
            metrics, _ = accumulated(wing, form, lambda *_: ({"m": scalar(wing, value, dtype)}, None), n)
            assert np.asarray(metrics["m"]).tolist() == [wide]
        if narrow is None:
            return
    metrics, _ = accumulated(wing, form, lambda *_: ({"m": scalar(wing, value, dtype)}, None), n)
    assert np.asarray(metrics["m"]).tolist() == [narrow if wing.name == "jax_impl" else wide]
    metrics, _ = accumulated(wing, form, lambda *_: ({"m": scalar(wing, value, dtype)[0]}, None), n)
    assert np.asarray(metrics["m"]).tolist() == (narrow if wing.name == "jax_impl" else wide)


def test_numbers_and_arrays_of_several_kinds_are_summed(wing):
    """As before, a number in one minibatch may be an array in another."""

    def parts(minibatch, index):
        return {"m": 0 if index == 0 else minibatch["x"].sum(), "flag": True, "f": 0.5}, None

    for form in FORMS[:2]:
        metrics, _ = accumulated(wing, form, parts, 3)
        assert float(metrics["m"]) == 4 and int(metrics["flag"]) == 3 and float(metrics["f"]) == 1.5


DIFFERENT = {
    "a shape": (
        lambda wing, b: ({"m": wing.array((1,) if b < 2 else (5,))}, None),
        r"[0]['m']` is f32[5] in minibatch 2; expected f32[1], as in minibatch 0",
    ),
    "a missing name": (
        lambda wing, b: ({"m": 1.0} | ({"n": 1.0} if b < 1 else {}), None),
        "[0]['n']` is missing in minibatch 1; expected it, as in minibatch 0",
    ),
    "a new name": (
        lambda wing, b: ({"m": wing.array((2,))} | ({"n": wing.array((2,))} if b else {}), None),
        "[0]['n']` is f32[2] in minibatch 1; expected no such leaf, as in minibatch 0",
    ),
    "a variable's shape": (
        lambda wing, b: ({}, {"v": wing.array((3, b + 1))}),
        "[1]['v']` is f32[3,2] in minibatch 1; expected f32[3,1], as in minibatch 0",
    ),
    "a variable that becomes None": (
        lambda wing, b: ({}, {"v": None if b else wing.array((3,))}),
        "[1]['v']` is missing in minibatch 1; expected it, as in minibatch 0",
    ),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_minibatches_that_do_not_fit_together_are_refused_by_name(wing, difference):
    parts, text = DIFFERENT[difference]
    for form in FORMS[:2] if wing.name == "jax_impl" else FORMS:
        with pytest.raises(ValueError, match=re.escape(f"{form}: `loss_fn(…)[1]{text}")):
            accumulated(wing, form, lambda minibatch, b: parts(wing, b), 3)


@pytest.mark.parametrize("form", FORMS)
def test_a_metric_that_is_no_number_is_refused_by_name(wing, form):
    for value, got in (("x", "'x'"), (object(), "a object"), (np.array("x"), "<U1[]")):
        text = f"{form}: `loss_fn(…)[1][0]['m']` is {got}; expected a number or a numeric array"
        with pytest.raises(TypeError, match=re.escape(text)):
            accumulated(wing, form, lambda *_, value=value: ({"m": value}, None), 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_parameter_without_a_gradient_is_refused_by_name(wing, form):
    array = {"reference": "a numpy.ndarray", "torch_impl": "a torch.Tensor"}.get(
        wing.name, "a jax.Array or a numpy.ndarray"
    )
    for value, got in ((wing.array((3,), "int32"), "i32[3]"), (wing.array((3,), "bool"), "bool[3]"), (1.5, "1.5")):
        params = {"w": wing.array((2,)), "n": value}
        text = f"{form}: `state.params['n']` is {got}; expected {array} in a floating-point dtype"
        with pytest.raises(TypeError, match=re.escape(text)):
            accumulated(wing, form, lambda *_: ({}, None), 2, params)
