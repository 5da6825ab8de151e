"""The layers of NNX: the linen layers' results and parameters, in NNX's own transforms."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_impl
import jax_impl.nnx
from jax_impl.interop.gru import gru_from_weights, gru_weights_from_flax
from tests.jax.tools import assert_close, normal

ARGUMENTS = {"GRU": (6, 4, 5, 2), "sLSTM": (6, 4, 5, 2), "mLSTM": (6, 1, True)}


def made(name, **settings):
    """A layer whose parameters are all different from 0, and an input."""
    layer = getattr(jax_impl.nnx, name)(*ARGUMENTS[name], **settings, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    state = nnx.state(layer, nnx.Param)
    nnx.update(layer, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, x.dtype), state))
    return layer, normal(rng, 3, 7, 6, dtype=np.float32)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_has_the_parameters_and_the_results_of_the_linen_layer(name):
    layer, x = made(name)
    linen = getattr(jax_impl, name)(*ARGUMENTS[name])
    initial = linen.init(jax.random.key(0), x)
    own, variables = layer.to_linen()
    assert own == linen
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, initial)
    (y, state), (expected, last) = layer(x), linen.apply(variables, x)
    assert_close(jax.tree.leaves((y, state)), jax.tree.leaves((expected, last)), 1e-6)
    cu_seqlens = jnp.array([0, 4, 4, 7])
    packed, _ = layer(x[0], state, cu_seqlens)
    assert_close(packed, linen.apply(variables, x[0], state, cu_seqlens)[0], 1e-6)
    again = getattr(jax_impl.nnx, name).from_linen(linen, variables)
    for got, want in zip(jax.tree.leaves(again.to_linen()[1]), jax.tree.leaves(variables), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(again(x)[0], y)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_gradients_under_its_transforms(name):
    layer, x = made(name)
    linen, variables = layer.to_linen()
    found = nnx.jit(nnx.grad(lambda layer, x: jnp.sum(jnp.sin(layer(x)[0]))))(layer, x)
    expected = jax.jit(jax.grad(lambda variables: jnp.sum(jnp.sin(linen.apply(variables, x)[0]))))(variables)
    for got, want in zip(jax.tree.leaves(nnx.to_pure_dict(found)), jax.tree.leaves(expected), strict=True):
        assert_close(got, want, 1e-5)


def test_steps_of_the_mlstm():
    layer, x = made("mLSTM")
    state, outputs = layer.initial_state(3), []
    for t in range(7):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    assert_close(jnp.stack(outputs, 1), layer(x)[0], 1e-5)


def test_initial_values_are_drawn_from_rngs():
    first, again, other = (jax_impl.nnx.GRU(6, 4, 5, 2, rngs=nnx.Rngs(params=seed)) for seed in (0, 0, 1))
    weights = [layer.state_weight[...] for layer in (first, again, other)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2]) and first.input_projection.kernel.shape == (6, 24)


def test_weights_of_a_cell_of_nnx_load():
    cell = nnx.GRUCell(6, 4, bias_init=nnx.initializers.normal(0.5), rngs=nnx.Rngs(0))
    weights = gru_weights_from_flax(nnx.to_pure_dict(nnx.state(cell, nnx.Param)))
    layer = jax_impl.nnx.GRU.from_linen(*gru_from_weights(weights))
    x = normal(np.random.default_rng(2), 3, 7, 6, dtype=np.float32)
    expected = nnx.RNN(cell)(x)
    assert_close(layer(x)[0], expected, 1e-5)


def test_refusals():
    with pytest.raises(ValueError, match=r"^GRU: `num_input_heads` is 0; expected an integer of at least 1"):
        jax_impl.nnx.GRU(6, 4, 5, 0, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"^GRU.from_linen: `layer` is a Dense; expected jax_impl.GRU"):
        jax_impl.nnx.GRU.from_linen(nn.Dense(3), {"params": {}})
    linen = jax_impl.mLSTM(6, 1)
    params = linen.init(jax.random.key(0), jnp.zeros((1, 1, 6)))["params"]
    with pytest.raises(ValueError, match=r"^mLSTM.from_linen: `variables` has shapes .*; expected"):
        jax_impl.nnx.mLSTM.from_linen(linen, {"params": {**params, "q": {}}})
