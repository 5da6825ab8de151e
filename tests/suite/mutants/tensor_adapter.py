"""The specification's forward loops on PyTorch tensors: outputs in the dtype of the values, gradients by autograd."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import reference as specification
from reference.arguments import MLSTMState


@contextmanager
def _accumulating_in(x: torch.Tensor) -> Iterator[None]:
    """While it is open, what the loops allocate has the accumulation dtype of ``x``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if x.dtype == torch.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _sum(name: str) -> Any:
    def function(*arrays: torch.Tensor) -> torch.Tensor:
        with _accumulating_in(arrays[0]):
            return getattr(specification, name)(*arrays).to(arrays[0].dtype)

    return function


rev_cumsum, rev_cumsum_off = _sum("rev_cumsum"), _sum("rev_cumsum_off")
causal_forget_matrix, dtilde_matrix = _sum("causal_forget_matrix"), _sum("dtilde_matrix")


def mlstm(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    *,
    return_state: bool = False,
    chunk_size: int | None = None,
    **options: Any,
) -> Any:
    """One step after the other, whatever the chunk size."""
    with _accumulating_in(v):
        h, state = specification.mlstm(q, k, v, i, f, return_state=True, **options)
    h = h.to(v.dtype)
    return (h, state) if return_state else h


def mlstm_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    state: MLSTMState,
    *,
    eps: float = 0.0,
) -> Any:
    with _accumulating_in(v):
        h, last = specification.mlstm_step(q, k, v, i, f, state, eps=eps)
    return h.to(v.dtype), last


def gru(input: torch.Tensor, *arrays: Any, gradient_clipping: float | None = None, **options: Any) -> Any:
    if gradient_clipping is not None:
        raise NotImplementedError("autograd of a plain loop does not clip")
    with _accumulating_in(input):
        y, state = specification.gru(input, *arrays, **options)
    return y.to(input.dtype), state
