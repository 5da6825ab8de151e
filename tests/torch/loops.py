"""The operations written again, one step after the other, for PyTorch's own autograd in float64: what the tests hold
`torch_impl` against. Nothing here is shared with it."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


def mlstm_loop(q, k, v, i, f, state=None, eps=0.0, stabilize_correctly=True, freeze=True):
    """``(h, C, n, m)`` of a dense mLSTM.

    With ``freeze`` the stabiliser is a constant at its value wherever h is concerned, which is what the stated
    exceptions say of it; without, autograd goes through everything.
    """
    B, S, N, K = q.shape
    if state is None:
        state = q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N)
    C, n, m = state
    constant = Tensor.detach if freeze else (lambda x: x)
    before, live = m, m
    hs = []
    for t in range(S):
        a = torch.minimum(f[:, t], torch.zeros_like(f[:, t])) - torch.log1p(torch.exp(-f[:, t].abs()))
        attained = torch.where(i[:, t] > a + live, i[:, t], a + live)
        now = constant(attained)
        decay, gain = _exp(a + before, now), _exp(i[:, t], now)
        C = decay[..., None, None] * C + gain[..., None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        n = decay[..., None] * n + gain[..., None] * k[:, t]
        query = q[:, t] / K**0.5
        nu = (n * query).sum(-1).abs()
        floor = torch.exp(-now.clamp(max=64.0)) if stabilize_correctly else torch.ones_like(now)
        hs.append((C * query[..., None]).sum(-2) / (torch.where(nu > floor, nu, floor) + eps)[..., None])
        before, live = now, attained
    h = torch.stack(hs, 1) if hs else v.clone()
    if S and freeze:
        # C and n are handed on in units of exp(m), of the m that is not frozen.
        units = torch.exp(torch.where(live == -torch.inf, 0.0, live.detach() - live))
        C, n = C * units[..., None, None], n * units[..., None]
    return h, C, n, live


def _exp(x: Tensor, y: Tensor) -> Tensor:
    """``exp(x − y)``, 0 where both are −∞."""
    empty = x == -torch.inf
    return torch.where(empty, 0.0, torch.exp(torch.where(empty, 0.0, x) - torch.where(empty, 0.0, y)))


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-ctx.bound, ctx.bound), None


def gru_loop(x, W, xf, Wf, xr, Wr, state=None, clip=None):
    """``(output, output_state)`` of a dense GRU with grouped heads."""
    arrays = [x, W, xf, Wf, xr, Wr]
    N = max(y.shape[0 if number % 2 else -2] for number, y in enumerate(arrays))
    heads = [
        torch.stack([y.select(axis, n // (N // y.shape[axis])) for n in range(N)], axis)
        for y, axis in zip(arrays, (2, 0) * 3, strict=True)
    ]
    x, W, xf, Wf, xr, Wr = heads
    h = x.new_zeros(x.shape[0], N, x.shape[-1]) if state is None else state
    outputs = []
    for t in range(x.shape[1]):
        r = torch.sigmoid(torch.einsum("bni,nij->bnj", h, Wr) + xr[:, t])
        f = torch.sigmoid(torch.einsum("bni,nij->bnj", h, Wf) + xf[:, t])
        z = torch.tanh(torch.einsum("bni,nij->bnj", r * h, W) + x[:, t])
        new = f * h + (1 - f) * z
        outputs.append(new)
        h = new if clip is None else _Clip.apply(new, clip)
    return (torch.stack(outputs, 1) if outputs else x.clone()), h


def packed_loop(loop, arrays, packed, states, bounds, *options):
    """A dense ``loop`` run on each packed sequence of its own; ``packed`` says which of ``arrays`` hold tokens."""
    tokens, lasts = [], []
    for b, (start, end) in enumerate(pairwise(bounds)):
        sequence = [x[None, start:end] if is_packed else x for x, is_packed in zip(arrays, packed, strict=True)]
        of_sequence = None if states is None else [x[b : b + 1] for x in states]
        if loop is gru_loop and of_sequence is not None:
            of_sequence = of_sequence[0]
        y, *last = loop(*sequence, of_sequence, *options)
        tokens.append(y[0])
        lasts.append(last)
    return torch.cat(tokens), *(torch.cat(parts) for parts in zip(*lasts, strict=True))


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
