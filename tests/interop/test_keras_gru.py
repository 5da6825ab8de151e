"""Weights of ``keras.layers.GRU`` in the layers of all three packages."""

from typing import Any

import keras
import numpy as np
import pytest
import torch

from reference.interop.gru_checkpoints import gru_weights_from_keras
from tests.interop.layers import PACKAGES, Inputs, Result, check
from tests.interop.rounding import assert_rounding

# Keras' own variables are read by an older protocol of NumPy's.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def made(features: int, units: int, dtype: str, **settings: Any) -> keras.layers.GRU:
    """A layer whose biases are not 0, as Keras' initialiser would leave them."""
    options = {"reset_after": False, "return_sequences": True, "return_state": True, "dtype": dtype} | settings
    layer = keras.layers.GRU(units, bias_initializer=keras.initializers.RandomNormal(seed=1), **options)
    layer.build((None, None, features))
    return layer


def run(layer: keras.layers.GRU, x: np.ndarray, h0: np.ndarray | None, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Output, state and gradients of the peer, those of its parameters under its own names."""
    input = torch.tensor(x, requires_grad=True)
    output, state = layer(input, initial_state=None if h0 is None else torch.tensor(h0))
    (output * torch.tensor(dy)).sum().backward()
    found = {variable.name: variable.value.grad.numpy() for variable in layer.trainable_variables}
    assert input.grad is not None
    return {"output": output.detach().numpy(), "state": state.detach().numpy(), "input": input.grad.numpy(), **found}


def in_our_order(columns: np.ndarray) -> np.ndarray:
    """Columns z, r, h of Keras as candidate, forget gate and reset gate."""
    update, reset, candidate = np.split(columns, 3, axis=-1)
    return np.concatenate([candidate, update, reset], axis=-1)


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize(
    ("use_bias", "features", "units", "B", "S"), [(True, 5, 7, 3, 11), (False, 8, 4, 2, 40), (True, 1, 1, 1, 1)]
)
def test_a_layer_of_keras_agrees(use_bias: bool, features: int, units: int, B: int, S: int, reset_after: bool) -> None:
    """Keras rounds to float32 in float64 too (its tanh), so Keras and ours in float32 are held to ours in float64.

    The weights are the same in every run (tests/conftest.py): the only element of a state may be the difference of two
    numbers that nearly cancel. With one of 60 seeds it was off by 138 to 1,474 units in all three packages.
    """
    rng = np.random.default_rng(S)
    layer = made(features, units, "float32", use_bias=use_bias, reset_after=reset_after)
    x, dy, h0 = (rng.normal(size=shape).astype("f4") for shape in ((B, S, features), (B, S, units), (B, units)))
    h0 = h0 if S % 2 else None
    peer = run(layer, x, h0, dy)
    candidate, forget, reset = np.split(in_our_order(peer["recurrent_kernel"]), 3, axis=1)
    gradients = {"input": peer["input"], "input_kernel": in_our_order(peer["kernel"])}
    gradients |= {"state_weight": candidate[None], "forget_weight": forget[None], "reset_weight": reset[None]}
    if use_bias:
        gradients["input_bias"] = in_our_order(peer["bias"][0] if reset_after else peer["bias"])
    if use_bias and reset_after:
        gradients["recurrent_bias"] = peer["bias"][1:, 2 * units :]

    inputs = Inputs(x=x, h0=None if h0 is None else h0[:, None], dy=dy)
    arrays, config = layer.get_weights(), layer.get_config()
    single = gru_weights_from_keras(arrays, config)
    double = gru_weights_from_keras([array.astype("f8") for array in arrays], config | {"dtype": "float64"})
    theirs = Result(output=peer["output"], state=peer["state"][:, None], gradients=gradients)
    check(theirs, (single, double), inputs)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_dense_layer_that_follows_is_the_output_projection(package: str) -> None:
    layer, dense = made(4, 6, "float32"), keras.layers.Dense(3, bias_initializer="ones")
    dense.build((None, None, 6))
    x = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
    weights = gru_weights_from_keras(layer.get_weights(), layer.get_config())
    ours = PACKAGES[package](weights.with_output_projection(*dense.get_weights()), Inputs(x=x))
    assert_rounding(ours.output.astype("f4"), dense(layer(torch.tensor(x))[0]).detach().numpy(), "output")


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_regularizer": "l2", "bias_constraint": "non_neg", "recurrent_initializer": "he_normal"},
        {"return_sequences": False, "return_state": False, "unroll": True, "name": "a", "trainable": False},
    ],
)
def test_what_does_not_change_the_function_is_accepted(settings: dict[str, Any]) -> None:
    layer = made(3, 2, "float32", **settings)
    weights = gru_weights_from_keras(layer.get_weights(), layer.get_config())
    assert weights.dtype == np.float32 and weights.state_size == 2
