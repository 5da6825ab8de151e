"""Sizes that the laws do not draw: wide heads, long sequences, and maps over an axis of size 0."""

import numpy as np
import pytest

from tests.both.tools import compare, gru, gru_inputs, gru_reference, mlstm, mlstm_inputs, mlstm_state, native, pulled


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradients_of_a_wide_head(framework, dtype):
    """So many multiplications that oneDNN does them in PyTorch, and each gate has a product of its own in JAX."""
    rng = np.random.default_rng(8)
    arrays = gru_inputs(rng, 16, 2, heads=(1,) * 6, H=256, scale=256**-0.5)
    arrays.append(rng.normal(size=(16, 1, 256)))
    compare(framework, gru(framework), gru_reference, arrays, dtype)


@pytest.mark.long
def test_forget_gradient_over_a_long_sequence(framework):
    """In float32 at S = 4096 half the elements are right to 2e-6, and no gradient crosses a hard reset."""
    rng = np.random.default_rng(8)
    S, reset = 4096, 1000
    arrays = [x.astype(np.float32) for x in mlstm_inputs(rng, 1, S, N=2, K=16, V=16, gates=1.0)]
    arrays[4] += 3
    arrays[4][:, reset] = -np.inf
    dh = rng.normal(size=(1, S, 2, 16)).astype(np.float32)
    got, exact = (
        pulled(framework, lambda *x: [framework.package.mlstm(*x)], arrays, [dh], dtype)[1][4]
        for dtype in ("float32", "float64")
    )
    assert (got[:, reset] == 0).all() and (exact[:, reset] == 0).all()
    kept = exact != 0
    assert np.median(np.abs(got - exact)[kept] / np.abs(exact)[kept]) < 2e-6


def test_decays_are_no_differences_of_large_sums(framework):
    (gates,) = native(framework, [np.full(4096, -10.0)], "float32")
    assert framework.numpy(framework.package.causal_forget_matrix(gates))[-1, -2] == -10.0


def calls_of_two_sequences():
    """By name: an attribute of a framework as a function of arrays, and the arrays."""
    rng = np.random.default_rng(0)
    bounds, state = np.array([0, 3, 6]), mlstm_state(rng, 2, 3)
    gates = rng.normal(size=(2, 3, 1))

    def packed(framework):
        return mlstm(framework, cu_seqlens=framework.array(bounds, "int32"))

    def of_name(name):
        return lambda framework: getattr(framework.package, name)

    return {
        "mlstm": (mlstm, [*mlstm_inputs(rng, 2, 3), *state]),
        "mlstm packed": (packed, [*mlstm_inputs(rng, 6), *state]),
        "mlstm_step": (
            lambda framework: lambda *x: framework.package.mlstm_step(*x[:5], tuple(x[5:])),
            [*mlstm_inputs(rng, 2), *state],
        ),
        "gru": (gru, [*gru_inputs(rng, 2, 3), rng.normal(size=(2, 6, 5))]),
        "dtilde_matrix": (of_name("dtilde_matrix"), [gates, gates]),
        **{name: (of_name(name), [gates[..., 0]]) for name in ("rev_cumsum", "rev_cumsum_off", "causal_forget_matrix")},
    }


@pytest.mark.parametrize("name", calls_of_two_sequences())
def test_a_map_over_nothing_has_the_shapes_of_one_over_something(framework, name):
    """The gradient of the map, and the map of the gradient."""
    make, arrays = calls_of_two_sequences()[name]
    function = make(framework)
    outputs = [tuple(x.shape) for x in framework.leaves(function(*native(framework, arrays, "float32")))]

    def with_gradients(*x):
        values, pull = framework.vjp(lambda *x: tuple(framework.leaves(function(*x))), *x)
        return (*values, *pull(values))

    none = native(framework, [np.zeros((0, *x.shape)) for x in arrays], "float32")
    cotangents = native(framework, [np.zeros((0, *shape)) for shape in outputs], "float32")
    values, gradients = framework.pull_back(framework.jit(framework.vmap(function)), none, cotangents)
    for mapped in ([*values, *gradients], framework.jit(framework.vmap(with_gradients))(*none)):
        assert [tuple(x.shape) for x in mapped] == [(0, *shape) for shape in (*outputs, *(x.shape for x in arrays))]
