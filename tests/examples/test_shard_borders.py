"""The model parts that read across borders of shards: equal to a loop over whole sequences, alone and with an mLSTM."""

import itertools

import numpy as np
import pytest

B, D, W = 2, 3, 4
BOUNDS = [0, 0, 3, 4, 12]
S = BOUNDS[-1]


def loop(x, weight, cu_seqlens=None):
    """``y_t = Σ_d weight[d] x_{t−d}`` of dense ``(B, S, D)``, or of the sequences of a packing."""
    if cu_seqlens is not None:
        parts = [loop(x[None, a:b], weight)[0] for a, b in itertools.pairwise(cu_seqlens)]
        return np.concatenate(parts)
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        for delay in range(min(len(weight), t + 1)):
            y[:, t] += weight[delay] * x[:, t - delay]
    return y


def drawn(seed, packed):
    rng = np.random.default_rng(seed)
    lead = (S,) if packed else (B, S)
    return rng.normal(size=(*lead, D)), rng.normal(size=(W, D)), rng.normal(size=(*lead, D))


def gradients(dy, x, weight, bounds):
    """By the loop's transpose: x and its reverse change places."""
    if bounds is None:
        dx = loop(dy[:, ::-1], weight)[:, ::-1]
    else:
        dx = np.concatenate([loop(dy[None, a:b][:, ::-1], weight)[0, ::-1] for a, b in itertools.pairwise(bounds)])
    dweight = [
        (dy * loop(x, np.eye(W)[delay][:, None] * np.ones(D), bounds)).sum((0, 1)[: x.ndim - 1]) for delay in range(W)
    ]
    return dx, np.stack(dweight)


@pytest.mark.grid
@pytest.mark.parametrize(("devices", "packed"), [(2, True), (6, True), (4, False)])
def test_jax(devices, packed):
    """With shards longer and shorter than the convolution reaches; then as a part of a model with an mLSTM."""
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    import jax_impl
    from examples.shard_borders_jax import causal_convolution, token_shift

    jax.config.update("jax_enable_x64", True)
    x, weight, dy = map(jnp.asarray, drawn(devices, packed))
    bounds = jnp.array(BOUNDS) if packed else None
    mesh = jax.make_mesh((devices,), ("sp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    steps = P("sp") if packed else P(None, "sp")

    def sharded(function):
        return jax.shard_map(lambda *y: function(*y, bounds, "sp"), mesh=mesh, in_specs=(steps, P()), out_specs=steps)

    y, pull_back = jax.vjp(jax.jit(sharded(causal_convolution)), x, weight)
    np.testing.assert_allclose(y, loop(x, weight, BOUNDS if packed else None), atol=1e-12)
    for got, expected in zip(pull_back(dy), gradients(dy, x, weight, BOUNDS if packed else None), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)

    def part(x, weight, bounds=None, sequence_axis=None):
        z = token_shift(
            jax.nn.silu(causal_convolution(x, weight, bounds, sequence_axis)), weight[0], bounds, sequence_axis
        )
        q, i = z[..., None, :], z[..., :1]
        return jax_impl.mlstm(q, q, x[..., None, :], i, i + 2, cu_seqlens=bounds, sequence_axis=sequence_axis)[
            ..., 0, :
        ]

    whole, of_whole = jax.vjp(lambda *y: part(*y, bounds), x, weight)
    shared, of_shared = jax.vjp(jax.jit(sharded(part)), x, weight)
    for got, expected in zip((shared, *of_shared(dy)), (whole, *of_whole(dy)), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-11)


CUTS = ([0, 5, 5, 12], [0, 1, 2, 12], [0, 0, 0, 12])


def on_rank(rank):
    import torch

    from examples.shard_borders_torch import causal_convolution, token_shift
    from torch_impl import mlstm

    group, found = torch.distributed.group.WORLD, {}

    def part(x, weight, bounds=None, group=None):
        z = torch.nn.functional.silu(causal_convolution(x, weight, bounds, group))
        z = token_shift(z, weight[0], bounds, group)
        q, i = z.unsqueeze(-2), z[..., :1]
        return mlstm(q, q, x.unsqueeze(-2), i, i + 2, cu_seqlens=bounds, sequence_group=group).squeeze(-2)

    for packed, cuts in itertools.product((False, True), CUTS):
        x, weight, dy = map(torch.tensor, drawn(7, packed))
        bounds, axis = (torch.tensor(BOUNDS), 0) if packed else (None, 1)
        own = [y.narrow(axis, cuts[rank], cuts[rank + 1] - cuts[rank]) for y in (x, dy)]
        for function in (causal_convolution, part):
            both = []
            for tokens, cotangent, ranks in ((*own, group), (x, dy, None)):
                leaves = [y.clone().requires_grad_() for y in (tokens, weight)]
                y = function(*leaves, bounds, ranks)
                both.append([y.detach(), *torch.autograd.grad(y, leaves, cotangent)])
            (y, dx, dweight), (whole, dwhole, dweight_of_whole) = both
            torch.distributed.all_reduce(dweight)
            mine = [part.narrow(axis, cuts[rank], cuts[rank + 1] - cuts[rank]) for part in (whole, dwhole)]
            pairs = ((y, mine[0]), (dx, mine[1]), (dweight, dweight_of_whole))
            errors = [float((a - b).abs().max()) for a, b in pairs if a.numel()]
            found[function.__name__, packed, str(cuts)] = max(errors)
        if packed:
            np.testing.assert_allclose(causal_convolution(x, weight, bounds), loop(x.numpy(), weight.numpy(), BOUNDS))
    return found


def test_torch(tmp_path):
    """On three ranks, with short and empty shards; weights' gradients are added up over the ranks."""
    pytest.importorskip("torch")
    from tests.torch.processes import on_ranks

    for found in on_ranks(on_rank, 3, tmp_path):
        assert {name: error for name, error in found.items() if not error < 1e-11} == {}
