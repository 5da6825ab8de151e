"""The layer of xLSTM-7B in the ``xlstm`` package, ``mLSTMLayer``, and our `mLSTM` with its weights."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax.traverse_util import unflatten_dict
from mlstm_kernels.torch.backend_module import mLSTMBackendConfig
from xlstm.xlstm_large.model import mLSTMLayer, mLSTMLayerConfig

import jax_impl
import reference
import torch_impl
from tests.interop.rounding import assert_rounding

B, S, D, N = 2, 16, 24, 3


def made(use_bias: bool) -> mLSTMLayer:
    """A layer with random parameters, in the plain PyTorch form of its kernel and in float32."""
    torch.manual_seed(0)
    backend = mLSTMBackendConfig(
        chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native",
        step_kernel="native",
        chunk_size=8,
        return_last_states=True,
        autocast_kernel_dtype="float32",
    )
    layer = mLSTMLayer(mLSTMLayerConfig(embedding_dim=D, num_heads=N, use_bias=use_bias, mlstm_backend=backend))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize("use_bias", [False, True])
def test_its_state_dict_loads_and_gives_its_output(use_bias: bool) -> None:
    """Output, final state, and the gradient of every parameter, in all three packages."""
    theirs, rng = made(use_bias), np.random.default_rng(1)
    x, dy = (rng.normal(size=(B, S, D)).astype("f4") for _ in range(2))
    arrays = {name: value.numpy() for name, value in theirs.state_dict().items()}
    double = {name: value.astype("f8") for name, value in arrays.items()}

    own = reference.mLSTM(D, N, use_bias)
    assert {f"{of}.{leaf}" for of, leaves in own.params.items() for leaf in leaves} == arrays.keys()
    own.params = unflatten_dict(double, sep=".")
    truth, state = own(x)

    def in_torch(layer: Any) -> tuple[np.ndarray, list[np.ndarray], dict[str, np.ndarray]]:
        like = layer.q.weight
        output, last = layer(torch.tensor(x).to(like))
        (output * torch.tensor(dy).to(like)).sum().backward()
        gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
        return output.detach().numpy(), [part.detach().squeeze(-1).numpy() for part in last], gradients

    results, exact = {"xlstm": in_torch(theirs)}, torch_impl.mLSTM(D, N, use_bias, dtype=torch.float64)
    exact.load_state_dict(theirs.state_dict())
    _, _, gradients = in_torch(exact)
    ours = torch_impl.mLSTM(D, N, use_bias)
    ours.load_state_dict(theirs.state_dict())
    results["torch_impl"] = in_torch(ours)

    layer, params = jax_impl.mLSTM(D, N, use_bias), unflatten_dict(arrays, sep=".")

    def loss(params: Any) -> Any:
        output, last = layer.apply({"params": params}, x)
        return (output * dy).sum(), (output, last)

    (_, (output, last)), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    found = {f"{of}.{leaf}": np.asarray(d) for of, leaves in found.items() for leaf, d in leaves.items()}
    results["jax_impl"] = np.asarray(output), [np.asarray(part) for part in last], found

    for name, (output, last, found) in results.items():
        assert_rounding(output, truth, f"{name}: output")
        C, n, m = last
        scale = np.exp(m.reshape(B, N) - state.m).astype(m.dtype)
        assert_rounding(C.reshape(state.C.shape) * scale.reshape(B, N, 1, 1), state.C, f"{name}: C")
        assert_rounding(n.reshape(state.n.shape) * scale.reshape(B, N, 1), state.n, f"{name}: n")
        for argument, expected in gradients.items():
            # A shift of all input gates leaves the norm of h nearly unchanged, so that the terms of this one cancel.
            if argument != "igate_preact.bias":
                assert_rounding(found[argument], expected, f"{name}: {argument}")
