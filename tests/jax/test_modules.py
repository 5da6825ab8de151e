"""The flax modules: parameters, values, packing, dtypes, saving and loading."""

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
from tests.calls.layer_cases import LayerCase
from tests.jax.tools import assert_close, normal

SIZES = LayerCase(1, 1, 6, 16, 7, (2, 1, 4, 4, 2, 1)).settings()


@pytest.fixture(scope="module")
def layer():
    """A layer, its variables and an input."""
    module = jax_impl.GRU(**SIZES | {"gradient_clipping": 0.5})
    x = normal(np.random.default_rng(0), 2, 9, 6, dtype=np.float32)
    return module, module.init(jax.random.key(0), x), x


def test_save_and_load(layer):
    module, variables, x = layer
    saved = flax.serialization.to_bytes(variables)
    blank = module.init(jax.random.key(1), x)
    loaded = flax.serialization.from_bytes(blank, saved)
    for got, expected in zip(jax.tree.leaves(loaded), jax.tree.leaves(variables), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert_close(module.apply(loaded, x), module.apply(variables, x), 1e-7)


def test_without_bias_and_in_other_dtypes():
    x = normal(np.random.default_rng(2), 2, 5, 6, dtype=np.float32)
    module = jax_impl.GRU(**SIZES | {"add_bias": False}, dtype=jnp.bfloat16)
    variables = module.init(jax.random.key(0), x)
    assert set(variables["params"]["input_projection"]) == {"kernel"}
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    y, state = module.apply(variables, jnp.asarray(x, jnp.bfloat16))
    assert (y.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    with jax.enable_x64(True):
        module = module.clone(dtype=None)
        y, state = module.apply(variables, x.astype(np.float64))
    assert y.dtype == state.dtype == np.float64


class Model(nn.Module):
    """Both layers inside a model of a user's."""

    @nn.compact
    def __call__(self, x):
        y, _ = jax_impl.GRU(**SIZES)(x)
        return jax_impl.mLSTMBackendFwbw({})(y, y, y, y[..., 0], y[..., 1])


def test_layers_in_a_model_are_tabulated_and_captured():
    x = jnp.zeros((2, 3, 6))
    model = Model()
    table = model.tabulate(jax.random.key(0), x, console_kwargs={"width": 400})
    assert all(name in table for name in ("GRU_0/input_projection", "state_weight", "mLSTMBackendFwbw_0"))
    variables = model.init(jax.random.key(0), x)
    _, captured = model.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])
    layer = captured["intermediates"]["GRU_0"]
    assert jax.tree.map(jnp.shape, layer["__call__"]) == (((2, 3, 7), (2, 4, 16)),)
    assert layer["input_projection"]["__call__"][0].shape == (2, 3, 7 * 16)


def test_an_mlstm_in_16_bits():
    """Products in 16 bits; parameters, gates and states in float32."""
    x = normal(np.random.default_rng(2), 2, 5, 16, dtype=np.float32)
    module = jax_impl.mLSTM(16, 2, True)
    variables = module.init(jax.random.key(0), x)
    expected, _ = module.apply(variables, x)
    low = module.clone(dtype=jnp.bfloat16)
    y, state = low.apply(variables, x)
    first, _ = low.apply(variables, x[:, 0], low.initial_state(2), method="step")
    assert y.dtype == first.dtype == jnp.bfloat16 and {part.dtype for part in state} == {jnp.dtype(jnp.float32)}
    assert_close([y, first], [expected, expected[:, 0]], 3e-2)
    assert not np.array_equal(y, expected)
