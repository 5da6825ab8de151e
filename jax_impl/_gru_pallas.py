"""The GRU by Pallas kernels: heads laid out in the kernels' tiles of 64 units, packed sequences cut into blocks of
steps.

Arrays come and go as in `_gru`: dense ``(S, W, B, G, H)``, packed ``(W, T, G, H)``, states ``(W, B, G, H)``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jax_impl._framework import first_order, vary_like
from jax_impl.kernels import gru
from jax_impl.kernels._pallas import L
from jax_impl.kernels.gru_parts import Cut

BLOCK = 64
"""Steps of packed sequences that one launch takes, unless all tokens are fewer."""


@first_order("gru")
def forward(
    interpret: bool,
    inputs: tuple[jax.Array, jax.Array, jax.Array],
    weights: tuple[jax.Array, jax.Array, jax.Array],
    h0: jax.Array,
    cu_seqlens: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """The state after every step and the last one, float32.

    Args:
        inputs: x, x_f, x_r in the values' dtype.
        weights: W, W_f, W_r, ``(W, H, H)`` in the values' dtype.
    """
    c = _cut(weights, h0, False, interpret)
    W, Wf, Wr = (_square(c, weight) for weight in weights)

    def steps(h: jax.Array, xs: tuple, remaining: jax.Array) -> tuple[jax.Array, tuple]:
        x, xf, xr = (_tiled(c, part) for part in xs)
        inputs = jnp.stack([xf, xr, x], axis=2)
        y = gru.forward(c, inputs, (Wf, Wr, W), _tiled(c, h), _lanes(c, remaining, h))
        y = _untiled(y, xs[0])
        return y[-1], (y,)

    if cu_seqlens is None:
        last, (y,) = steps(h0, inputs, jnp.full(h0.shape[1], inputs[0].shape[0]))
    else:
        last, (y,) = _over_blocks(steps, h0, inputs, cu_seqlens, (jnp.float32,))
    return y, last


def backward(
    interpret: bool,
    bound: float | None,
    saved: tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array],
    weights: tuple[jax.Array, jax.Array, jax.Array],
    dlast: jax.Array,
    cu_seqlens: jax.Array | None,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Gradients of the three inputs, in the values' dtype, and of the first state.

    Args:
        saved: the state before each step, r, f and z in float32, and the output's cotangent in the values' dtype.
    """
    c = _cut(weights, dlast, True, interpret)
    W, Wf, Wr = (_square(c, weight) for weight in weights)
    dtype = weights[0].dtype

    def steps(dh: jax.Array, xs: tuple, remaining: jax.Array) -> tuple[jax.Array, tuple]:
        h, r, f, z, dy = xs
        pairs = (
            ((1 - f) * (1 - z * z), f),
            (h * r * (1 - r), r),
            (dy.astype(jnp.float32), (h - z) * f * (1 - f)),
        )
        factors = jnp.stack([jnp.concatenate([_tiled(c, part) for part in pair], axis=-2) for pair in pairs], axis=2)
        dxs, dfirst = gru.backward(c, bound, factors, (Wf, W, Wr), _tiled(c, dh), _lanes(c, remaining, dh), dtype)
        return _untiled(dfirst, dh), tuple(_untiled(dxs[:, :, kind], h) for kind in range(3))

    if cu_seqlens is None:
        dh0, dinputs = steps(dlast, saved, jnp.full(dlast.shape[1], saved[0].shape[0]))
    else:
        dh0, dinputs = _over_blocks(steps, dlast, saved, cu_seqlens, (dtype,) * 3, reverse=True)
    return dinputs, dh0


def _over_blocks(
    steps: Callable,
    carry: jax.Array,
    xs: tuple,
    cu_seqlens: jax.Array,
    dtypes: tuple,
    reverse: bool = False,
) -> tuple[jax.Array, tuple]:
    """Packed sequences as lanes, a block of steps at a time; a lane whose sequence is over (reversed: has not begun)
    waits.

    Whatever ``cu_seqlens`` holds, no index is out of bounds.
    """
    W, T, G, H = xs[0].shape
    length, size = jnp.diff(cu_seqlens), min(BLOCK, T)
    blocks = -(-jnp.max(length) // size)

    def body(number: jax.Array, loop: tuple) -> tuple[jax.Array, tuple]:
        carry, results = loop
        first = (blocks - 1 - number if reverse else number) * size
        position = first + jnp.arange(size)[:, None]
        token = cu_seqlens[:-1] + position
        block = tuple(jnp.moveaxis(jnp.take(x, token, axis=1, mode="clip"), 0, 1) for x in xs)
        carry, of_block = steps(carry, block, jnp.clip(length - first, 0, size))
        place = jnp.where((position < length) & (token >= 0), token, T)
        results = tuple(
            all.at[:, place].set(jnp.moveaxis(one, 1, 0), mode="drop")
            for all, one in zip(results, of_block, strict=True)
        )
        return carry, results

    blank = tuple(vary_like(jnp.zeros((W, T, G, H), dtype), carry) for dtype in dtypes)
    return jax.lax.fori_loop(0, blocks, body, (carry, blank))


def _cut(weights: tuple, h: jax.Array, gradient: bool, interpret: bool) -> Cut:
    _, B, G, H = h.shape
    return gru.cut(weights[0].dtype.name, H, B * G, gradient, interpret)


def _heads_a_tile(H: int) -> int:
    return max(1, L // max(H, 1))


def _square(c: Cut, weight: jax.Array) -> jax.Array:
    """``(W, H, H)`` → ``(tiles, 64·U, 64·U)``, as many heads as fit along the diagonal of each."""
    W, H, _ = weight.shape
    p, edge = _heads_a_tile(H), L * c.tiles
    weight = jnp.pad(weight, [(0, -W % p), (0, 0), (0, 0)]).reshape(-1, p, H, H)
    place = jnp.eye(p, dtype=bool)[:, None, :, None]
    diagonal = jnp.where(place, weight[:, :, :, None, :], 0).reshape(-1, p * H, p * H)
    return jnp.pad(diagonal, [(0, 0), (0, edge - p * H), (0, edge - p * H)])


def _tiled(c: Cut, x: jax.Array) -> jax.Array:
    """``(…, W, B, G, H)`` → ``(…, weights, U, 64, R)``, lanes filled up to whole blocks."""
    *before, W, B, G, H = x.shape
    p, edge, lead = _heads_a_tile(H), L * c.tiles, [(0, 0)] * len(before)
    x = jnp.swapaxes(x.reshape(*before, W, B * G, H), -1, -2)
    x = jnp.pad(x, [*lead, (0, -W % p), (0, 0), (0, -B * G % c.lanes)])
    x = x.reshape(*before, -1, p * H, x.shape[-1])
    x = jnp.pad(x, [*lead, (0, 0), (0, edge - p * H), (0, 0)])
    return x.reshape(*before, -1, c.tiles, L, x.shape[-1])


def _untiled(x: jax.Array, like: jax.Array) -> jax.Array:
    """Inverse of `_tiled`, in the shape of ``like``."""
    *before, W, B, G, H = like.shape
    p = _heads_a_tile(H)
    x = x.reshape(*before, x.shape[-4], -1, x.shape[-1])[..., : p * H, : B * G].reshape(*before, -1, H, B * G)
    return jnp.swapaxes(x[..., :W, :, :], -1, -2).reshape(like.shape)


def _lanes(c: Cut, remaining: jax.Array, h: jax.Array) -> jax.Array:
    """Steps left, ``(B,)``, for each lane, ``(64, R)``."""
    lanes = jnp.repeat(remaining.astype(jnp.int32), h.shape[2])
    return jnp.broadcast_to(jnp.pad(lanes, (0, -lanes.size % c.lanes)), (L, lanes.size + -lanes.size % c.lanes))
