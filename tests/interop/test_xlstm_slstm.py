"""Weights of ``sLSTMLayer`` of the ``xlstm`` package, and FlashRNN's sLSTM, in our layers and operations."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from flashrnn import flashrnn
from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

import jax_impl.interop.slstm
import reference.interop.slstm
import torch_impl.interop.slstm
from reference.interop.slstm_weights import SLSTMWeights, slstm_weights_from_xlstm
from tests.interop.rounding import assert_rounding

B, S, N, H = 2, 13, 2, 8
D = N * H


def made(convolution: int) -> sLSTMLayer:
    """A layer of the plain PyTorch backend whose recurrent weights are not 0."""
    torch.manual_seed(0)
    config = sLSTMLayerConfig(
        embedding_dim=D,
        num_heads=N,
        conv1d_kernel_size=convolution,
        backend="vanilla",
        recurrent_weight_init="standard",
        dtype="float32",
    )
    layer = sLSTMLayer(config)
    layer.reset_parameters()
    torch.nn.init.normal_(layer.slstm_cell._bias_)
    return layer


def weights_of(layer: sLSTMLayer, dtype: str) -> SLSTMWeights:
    arrays = {f"blocks.1.{name}": x.numpy().astype(dtype) for name, x in layer.state_dict().items()}
    return slstm_weights_from_xlstm(arrays, prefix="blocks.1.")


def gradients_of_theirs(layer: sLSTMLayer) -> dict[str, np.ndarray]:
    """The gradients of the cell's weights and biases under our names."""
    kernel, bias = layer.slstm_cell._recurrent_kernel_.grad, layer.slstm_cell._bias_.grad
    assert kernel is not None and bias is not None
    gates = kernel.reshape(N, 4, H, H).mT.numpy()
    found = {f"weight_{gate}": gates[:, at] for at, gate in enumerate("ifzo")}
    of_biases = bias.reshape(4, D).numpy()
    return {**found, "input_projection.bias": of_biases[[2, 0, 1, 3]].ravel()}


def ours_in_torch(weights: SLSTMWeights, x: np.ndarray, dh: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    layer = torch_impl.interop.slstm.slstm_from_weights(weights)
    output, _ = layer(torch.tensor(x))
    (output * torch.tensor(dh)).sum().backward()
    return output.detach().numpy(), {name: x.grad.numpy() for name, x in layer.named_parameters() if x.grad is not None}


def ours_in_jax(weights: SLSTMWeights, x: np.ndarray, dh: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    with jax.enable_x64(x.dtype == np.float64):
        layer, variables = jax_impl.interop.slstm.slstm_from_weights(weights)

        def loss(variables: Any) -> Any:
            output, _ = layer.apply(variables, x)
            return (output * dh).sum(), output

        (_, output), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    params = found["params"]
    gradients = {name: np.asarray(x) for name, x in params.items() if not isinstance(x, dict)}
    return np.asarray(output), {**gradients, "input_projection.bias": np.asarray(params["input_projection"]["bias"])}


@pytest.mark.parametrize("convolution", [4, 0])
def test_a_layer_of_xlstm_agrees(convolution: int) -> None:
    """Its cell's h, before dropout and group norm, and the gradients of the cell's parameters."""
    layer, rng = made(convolution), np.random.default_rng(1)
    x, dh = (rng.normal(size=(B, S, D)).astype("f4") for _ in range(2))
    seen = torch.tensor(x)
    convolved = layer.conv_act_fn(layer.conv1d(seen)) if convolution else seen
    # As in its `forward`: the projection named fgate is the cell's first gate, which is the input gate.
    gates = [layer.fgate(convolved), layer.igate(convolved), layer.zgate(seen), layer.ogate(seen)]
    h, _ = layer.slstm_cell(torch.cat(gates, dim=-1))
    h = h.transpose(1, 2).reshape(B, S, D)
    (h * torch.tensor(dh)).sum().backward()
    normed = layer.group_norm(h.reshape(B, S, N, H).transpose(1, 2)).transpose(1, 2).reshape(B, S, D)
    torch.testing.assert_close(layer(seen), normed)  # The layer is these steps.

    given = np.concatenate([x, convolved.detach().numpy()], -1) if convolution else x
    double = given.astype("f8")
    truth, gradients = ours_in_torch(weights_of(layer, "f8"), double, dh.astype("f8"))
    results = {"torch_impl": ours_in_torch(weights_of(layer, "f4"), given, dh)}
    results["jax_impl"] = ours_in_jax(weights_of(layer, "f4"), given, dh)
    results["jax_impl, float64"] = ours_in_jax(weights_of(layer, "f8"), double, dh.astype("f8"))
    results["xlstm"] = h.detach().numpy(), gradients_of_theirs(layer)
    own = reference.interop.slstm.slstm_from_weights(weights_of(layer, "f8"))(double)[0]
    assert_rounding(own, truth, "reference")
    for name, (output, found) in results.items():
        assert_rounding(output, truth, name)
        for argument in gradients_of_theirs(layer):
            assert_rounding(found[argument], gradients[argument], f"{name}: {argument}")


def test_the_layout_of_cuda_is_read() -> None:
    """The same parameters as that backend keeps them: kernels (N, H, 4·H), biases head by head."""
    layer = made(0)
    arrays = {name: x.numpy() for name, x in layer.state_dict().items()}
    expected = slstm_weights_from_xlstm(arrays)
    cell = layer.slstm_cell
    kernel, bias = (x.detach().numpy() for x in (cell._recurrent_kernel_, cell._bias_))
    arrays["slstm_cell._recurrent_kernel_"] = kernel.reshape(N, 4, H, H).transpose(0, 3, 1, 2).reshape(N, H, 4 * H)
    arrays["slstm_cell._bias_"] = bias.reshape(4, N, H).swapaxes(0, 1).ravel()
    found = slstm_weights_from_xlstm(arrays)
    for name in ("input_kernel", "input_bias", *(f"weight_{gate}" for gate in "zifo")):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_flashrnn_agrees() -> None:
    """FlashRNN takes inputs (B, S, gates i f z o, N, H), recurrent weights (gates, N, out, in) and biases."""
    rng = np.random.default_rng(2)
    gates = {name: rng.normal(size=(B, S, N, H)).astype("f4") for name in "zifo"}
    weights = {name: (rng.normal(size=(N, H, H)) / H**0.5).astype("f4") for name in "zifo"}
    dh = rng.normal(size=(B, S, N, H)).astype("f4")
    Wx = torch.tensor(np.stack([gates[name] for name in "ifzo"], 2), requires_grad=True)
    R = torch.tensor(np.stack([weights[name] for name in "ifzo"]).swapaxes(-1, -2).copy(), requires_grad=True)
    states, _ = flashrnn(Wx, R, torch.zeros(4, N, H), None, function="slstm", backend="vanilla", dtype="float32")
    (states[0] * torch.tensor(dh)).sum().backward()
    assert Wx.grad is not None and R.grad is not None
    arrays = [x.astype("f8") for x in (*gates.values(), *weights.values())]
    truth = reference.slstm(*arrays)
    found = reference.slstm_backward(*arrays, dh=dh.astype("f8"))
    assert_rounding(states[0].detach().numpy(), truth, "h")
    for at, name in enumerate("ifzo"):
        assert_rounding(Wx.grad[:, :, at].numpy(), found[name], name)
        assert_rounding(R.grad[at].mT.numpy(), found[f"weight_{name}"], f"weight_{name}")
