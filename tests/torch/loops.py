"""Random calls in float64, cotangents and gradients, and the distance between two tensors."""

import numpy as np
import torch
from torch import Tensor


def relative_error(got: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    """Largest error, as a part of the largest element expected; ``scale`` is that of terms which cancel in it."""
    assert got.shape == expected.shape
    if not got.numel():
        return 0.0
    error = (got.detach().double() - expected.detach().double()).abs().max()
    largest = expected.detach().double().abs().max().clamp(min=scale)
    return float(error / largest) if largest else float(error)


def mlstm_arguments(B, S, N, K, V, *, seed=0, with_state=False, packed=False, forget=0.0):
    """Random q, k, v, i, f in float64 (and C, n, m), every one of them in need of a gradient."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead = (S,) if packed else (B, S)
    arrays = [
        random(*lead, N, K),
        random(*lead, N, K),
        random(*lead, N, V),
        random(*lead, N),
        random(*lead, N) + forget,
    ]
    if with_state:
        arrays += [random(B, N, K, V), random(B, N, K), random(B, N)]
    return [x.requires_grad_() for x in arrays]


def gru_arguments(B, S, H, heads, *, seed=0, with_state=False, packed=False):
    """Random input, weight, forget_input, … in float64 (and input_state); ``heads`` in the order of the arguments."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead = (S,) if packed else (B, S)
    arrays = [
        random(count, H, H) / H**0.5 if number % 2 else random(*lead, count, H) for number, count in enumerate(heads)
    ]
    if with_state:
        arrays.append(random(B, max(heads), H))
    return [x.requires_grad_() for x in arrays]


def delta_arguments(B, S, K, V, heads, *, seed=0, packed=False):
    """Random q, k, v, g, beta and initial_state in float64; ``heads`` are those of the first five."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead = (S,) if packed else (B, S)
    q, k, v, g, beta = (
        random(*lead, count, *width) for count, width in zip(heads, ((K,), (K,), (V,), (), ()), strict=True)
    )
    arrays = [q, k / K**0.5, v, -g.abs(), beta.sigmoid(), random(B, max(heads), K, V)]
    return [x.requires_grad_() for x in arrays]


def like(tensors, dtype):
    """The same values in another dtype, as leaves of their own."""
    return [x.detach().to(dtype).requires_grad_() for x in tensors]


def cotangents(outputs, seed=1):
    """Random cotangents, drawn outside PyTorch: legal under vmap."""
    generator = np.random.default_rng(seed)
    return [torch.from_numpy(np.asarray(generator.standard_normal(tuple(y.shape)))).to(y.dtype) for y in outputs]


def gradients(outputs, inputs, upstream):
    live = [(y, d) for y, d in zip(outputs, upstream, strict=True) if y.requires_grad]
    outputs, upstream = [y for y, _ in live], [d for _, d in live]
    found = torch.autograd.grad(outputs, inputs, upstream, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
