"""Reverse sums and decay matrices: values, gradients, hard resets, dtypes, the seed notebook's rule."""

import numpy as np
import pytest

import reference
from tests.both.tools import assert_close, compare, native, pulled

LINEAR = ("rev_cumsum", "rev_cumsum_off", "causal_forget_matrix")
ARGUMENTS = {"causal_forget_matrix": ("forget_gates",), "dtilde_matrix": ("igate", "fgate")}
COTANGENT = {"causal_forget_matrix": "dF", "dtilde_matrix": "dD"}
INF = np.inf


def against_reference(framework, name, arrays, dtype="float64", tolerance=1e-13):
    def expected(arrays, cotangents=None):
        if cotangents is None:
            return [getattr(reference, name)(*arrays)]
        found = getattr(reference, f"{name}_backward")(*arrays, **{COTANGENT.get(name, "dy"): cotangents[0]})
        return [found[argument] for argument in ARGUMENTS.get(name, ("x",))]

    return compare(framework, getattr(framework.package, name), expected, arrays, dtype, tolerance)


@pytest.mark.grid
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 0, 5), (2, 3, 65)], ids=str)
def test_values_and_gradients(framework, name, shape):
    against_reference(framework, name, [-np.abs(np.random.default_rng(0).normal(size=shape))])


@pytest.mark.grid
@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (6, 1), (2, 3, 65, 1)], ids=str)
def test_dtilde(framework, shape):
    rng = np.random.default_rng(2)
    against_reference(framework, "dtilde_matrix", [rng.normal(size=shape), rng.normal(size=shape)])


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_narrow_dtypes_are_summed_in_float32(framework, dtype):
    x = np.random.default_rng(1).normal(size=(3, 3000))
    roundoff = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[dtype]
    for name in ("rev_cumsum", "rev_cumsum_off"):
        against_reference(framework, name, [x], dtype, 1.2 * roundoff)
    against_reference(framework, "causal_forget_matrix", [-np.abs(x[:, :40])], dtype, 1.2 * roundoff)
    against_reference(framework, "dtilde_matrix", [x[:, :40, None], x[:, 40:80, None]], dtype, 2 * roundoff)


@pytest.mark.grid
@pytest.mark.parametrize("gates", [[-1.0, -INF, -2.0, -3.0], [-1.0, -INF, -2.0, -1e4, -0.5]])
def test_hard_resets_leave_no_nan(framework, gates):
    against_reference(framework, "causal_forget_matrix", [np.array(gates)], "float32", 1e-6)
    for name in ("rev_cumsum", "rev_cumsum_off"):
        against_reference(framework, name, [np.array(gates)], "float32", 1e-6)


def test_decays_are_no_differences_of_large_sums(framework):
    (gates,) = native(framework, [np.full(4096, -10.0)], "float32")
    assert framework.numpy(framework.package.causal_forget_matrix(gates))[-1, -2] == -10.0


def test_dtilde_sums_masked_rows_for_the_input_gate(framework):
    """The notebook's cells 8 and 9: the gradient of D̃.sum() is S for every input gate, 0 for the first forget gate."""
    rng = np.random.default_rng(3)
    gates = [rng.normal(size=(2, 4, 5, 1)) for _ in "if"]
    ones = [np.ones((2, 4, 5, 5))]
    _, (di, df) = pulled(framework, framework.package.dtilde_matrix, gates, ones, "float32")
    assert (di == 5).all() and (df[..., 0, 0] == 0).all()
    counts = np.arange(5) * (5 - np.arange(5))
    np.testing.assert_allclose(df[..., 0], counts / (1 + np.exp(gates[1][..., 0])), rtol=1e-6)


def test_dtilde_at_the_limits_of_its_gates(framework):
    for i, f in (([0.0, -INF, 1e4, -1e4], [INF, -INF, 1e4, -1e4]), ([0.0, -INF, 1.0, 2.0], [0.0, 1.0, -INF, INF])):
        gates = [np.array(i)[:, None], np.array(f)[:, None]]
        against_reference(framework, "dtilde_matrix", gates, "float32", 1e-6)


def test_maps(framework):
    rng = np.random.default_rng(4)
    gates = native(framework, [rng.normal(size=(4, 9, 1)) for _ in "if"], "float32")
    function = framework.package.dtilde_matrix
    mapped, whole = (framework.numpy(call(*gates)) for call in (framework.vmap(function), function))
    assert_close([mapped], [whole], 1e-6)
