"""A small program of a user; `test_typing` checks it under pyright strict."""

from typing import assert_type

import jax
import numpy as np
import numpy.typing as npt
import torch

import conformance
import jax_impl
import reference
import torch_impl

MemoryInNumPy = tuple[np.ndarray, reference.MLSTMState]


def with_numpy(x: npt.NDArray[np.float64], gates: npt.NDArray[np.float64], some: bool) -> float:
    h = reference.mlstm(x, x, x, gates, gates, chunk_size=16)
    h, state = reference.mlstm(x, x, x, gates, gates, initial_state=None, return_state=True)
    assert_type(state, reference.MLSTMState)
    assert_type(reference.mlstm(x, x, x, gates, gates, return_state=some), np.ndarray | MemoryInNumPy)
    assert_type(reference.mlstm_step(x[:, 0], x[:, 0], x[:, 0], gates[:, 0], gates[:, 0], state), MemoryInNumPy)
    gradients = reference.mlstm_backward(x, x, x, gates, gates, dh=h)
    assert_type(reference.rev_cumsum(x), np.ndarray)
    return float(h.sum() + gradients["q"].sum())


def with_torch(x: torch.Tensor, gates: torch.Tensor, backend: torch_impl.KernelBackend) -> torch.Tensor:
    h = torch_impl.mlstm(x, x, x, gates, gates, kernel_backend=backend)
    assert_type(h, torch.Tensor)
    h, state = torch_impl.mlstm(x, x, x, gates, gates, return_state=True, kernel_backend="torch")
    assert_type(state, torch_impl.MLSTMState)
    step, state = torch_impl.mlstm_step(x[:, 0], x[:, 0], x[:, 0], gates[:, 0], gates[:, 0], state, eps=1e-6)
    layer = torch_impl.GRU(64, 16, 64, 8, gradient_clipping=1.0)
    output, _ = layer(torch.zeros(30, 64), cu_seqlens=torch.tensor([0, 12, 12, 30]))
    assert_type(torch_impl.dtilde_matrix(gates, gates), torch.Tensor)
    return h.sum() + step.sum() + output.sum()


def with_jax(x: jax.Array, gates: jax.Array, cu_seqlens: jax.Array) -> jax.Array:
    h = jax_impl.mlstm(x, x, x, gates, gates, cu_seqlens=cu_seqlens, max_seqlen=7)
    assert_type(h, jax.Array)
    h, state = jax_impl.mlstm(x, x, x, gates, gates, return_state=True)
    assert_type(state, jax_impl.MLSTMState)
    step, state = jax_impl.mlstm_step(x[:, 0], x[:, 0], x[:, 0], gates[:, 0], gates[:, 0], state)
    assert_type(jax_impl.rev_cumsum_off(x), jax.Array)
    return h.sum() + step.sum()


assert_type(conformance.__version__, str)
print(reference.explain_backend("mlstm"))
