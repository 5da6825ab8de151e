"""Weights of ``torch.nn.GRU`` and of Flax's GRU cells in the layers of all three packages, gradients included."""

import flax.linen
import jax
import numpy as np
import pytest
import torch
from flax import nnx

from reference.interop.gru_frameworks import gru_weights_from_flax, gru_weights_from_torch
from tests.interop.layers import PACKAGES, Inputs, Result, check
from tests.interop.rounding import assert_rounding

FEATURES, H, B, S = 5, 7, 3, 11


def inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    x, h0, dy = (rng.normal(size=size) for size in ((B, S, FEATURES), (B, 1, H), (B, S, H)))
    return Inputs(x=x.astype("f4"), h0=h0.astype("f4"), dy=dy.astype("f4"))


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_torch_agrees(bias: bool) -> None:
    torch.manual_seed(0)
    layer, given = torch.nn.GRU(FEATURES, H, bias=bias, batch_first=True), inputs(1)
    assert given.h0 is not None and given.dy is not None
    x = torch.tensor(given.x, requires_grad=True)
    output, state = layer(x, torch.tensor(given.h0).swapaxes(0, 1).contiguous())
    (output * torch.tensor(given.dy)).sum().backward()

    def rows(name: str) -> list[np.ndarray]:
        """The gradient of rows r, z, n as candidate, forget gate, reset gate."""
        gradient = getattr(layer, f"{name}_l0").grad
        reset, update, candidate = np.split(gradient.numpy(), 3)
        return [candidate, update, reset]

    assert x.grad is not None
    gradients = {"input": x.grad.numpy(), "input_kernel": np.concatenate(rows("weight_ih")).T}
    for name, of in zip(("state_weight", "forget_weight", "reset_weight"), rows("weight_hh"), strict=True):
        gradients[name] = of.T[None]
    if bias:
        gradients |= {"input_bias": np.concatenate(rows("bias_ih")), "recurrent_bias": rows("bias_hh")[0][None]}
    arrays = {name: value.numpy() for name, value in layer.state_dict().items()}
    weights = [gru_weights_from_torch({name: x.astype(dtype) for name, x in arrays.items()}) for dtype in ("f4", "f8")]
    peer = Result(output=output.detach().numpy(), state=state.detach().numpy().swapaxes(0, 1), gradients=gradients)
    check(peer, weights, given)


def test_a_cell_of_flax_agrees() -> None:
    bias_init = flax.linen.initializers.normal(0.5)
    layer = flax.linen.RNN(flax.linen.GRUCell(H, bias_init=bias_init), return_carry=True)
    given = inputs(2)
    assert given.h0 is not None and given.dy is not None
    h0, dy = given.h0[:, 0], given.dy
    variables = layer.init(jax.random.key(0), given.x)

    def loss(variables: dict, x: jax.Array) -> tuple[jax.Array, tuple]:
        state, output = layer.apply(variables, x, initial_carry=h0)
        return (output * dy).sum(), (output, state)

    (_, (output, state)), (found, dx) = jax.value_and_grad(loss, (0, 1), has_aux=True)(variables, given.x)
    (cell,) = variables["params"].values()
    (d,) = (jax.tree.map(np.asarray, each) for each in found["params"].values())
    into, own = [d[f"i{gate}"] for gate in "nzr"], [d[f"h{gate}"] for gate in "nzr"]
    gradients = {
        "input": np.asarray(dx),
        "input_kernel": np.concatenate([gate["kernel"] for gate in into], axis=1),
        "input_bias": np.concatenate([gate["bias"] for gate in into]),
        **{
            f"{name}_weight": gate["kernel"][None] for name, gate in zip(("state", "forget", "reset"), own, strict=True)
        },
        "recurrent_bias": own[0]["bias"][None],
    }
    weights = [
        gru_weights_from_flax(jax.tree.map(lambda x, dtype=dtype: np.asarray(x).astype(dtype), cell))
        for dtype in ("f4", "f8")
    ]
    peer = Result(output=np.asarray(output), state=np.asarray(state)[:, None], gradients=gradients)
    check(peer, weights, given)


def test_a_cell_of_nnx_agrees_and_arrays_of_jax_are_taken() -> None:
    cell = nnx.GRUCell(FEATURES, H, bias_init=nnx.initializers.normal(0.5), rngs=nnx.Rngs(0))
    given = inputs(2)
    assert given.h0 is not None
    state, outputs = jax.numpy.asarray(given.h0[:, 0]), []
    for t in range(given.x.shape[1]):
        state, output = cell(state, given.x[:, t])
        outputs.append(output)
    params = nnx.to_pure_dict(nnx.state(cell, nnx.Param))
    found = PACKAGES["reference"](gru_weights_from_flax(params), given)
    assert_rounding(np.stack(outputs, 1), found.output, "output")
    layer = flax.linen.GRUCell(H)
    variables = layer.init(jax.random.key(0), state, given.x[:, 0])
    _, output = layer.apply(variables, given.h0[:, 0], given.x[:, 0])
    found = PACKAGES["reference"](gru_weights_from_flax(variables["params"]), given)
    assert_rounding(np.asarray(output), found.output[:, 0], "output of Linen")
