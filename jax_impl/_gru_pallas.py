"""The GRU by Pallas kernels: heads laid out in the kernels' tiles of 64 columns, packed sequences cut into blocks
of steps.

Arrays come and go as in `_gru`: dense ``(S, W, B, G, H)``, packed ``(W, T, G, H)``, states ``(W, B, G, H)``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jax_impl._framework import first_order, vary_like
from jax_impl.kernels import gru
from jax_impl.kernels._pallas import TERMS, L, split

ROWS = 8
"""TMA takes whole groups of eight rows."""
BLOCK = 64
"""Steps of packed sequences that one launch takes."""


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
    setting, operands = _setting(weights, None, interpret)

    def steps(h: jax.Array, xs: tuple, remaining: jax.Array) -> tuple[jax.Array, tuple]:
        x, xf, xr = map(_tiled, xs)
        y, h_last = gru.forward(setting, (x, xf, xr), operands, _tiled(h), _rows(remaining, h))
        return _untiled(h_last, h), (_untiled(y, xs[0]),)

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
    setting, operands = _setting(weights, bound, interpret)
    dtype = weights[0].dtype

    def steps(dh: jax.Array, xs: tuple, remaining: jax.Array) -> tuple[jax.Array, tuple]:
        h, r, f, z, dy = map(_tiled, xs)
        *dxs, dh_first = gru.backward(setting, (h, r, f, z, dy), operands, _tiled(dh), _rows(remaining, dh), dtype)
        return _untiled(dh_first, dh), tuple(_untiled(dx, xs[0]) for dx in dxs)

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
    """Packed sequences as lanes, `BLOCK` steps at a time; a lane whose sequence is over (reversed: has not begun)
    waits.

    Whatever ``cu_seqlens`` holds, no index is out of bounds.
    """
    W, T, G, H = xs[0].shape
    length = jnp.diff(cu_seqlens)
    blocks = -(-jnp.max(length) // BLOCK)

    def body(number: jax.Array, loop: tuple) -> tuple[jax.Array, tuple]:
        carry, results = loop
        first = (blocks - 1 - number if reverse else number) * BLOCK
        position = first + jnp.arange(BLOCK)[:, None]
        token = cu_seqlens[:-1] + position
        block = tuple(jnp.moveaxis(jnp.take(x, token, axis=1, mode="clip"), 0, 1) for x in xs)
        carry, of_block = steps(carry, block, jnp.clip(length - first, 0, BLOCK))
        place = jnp.where((position < length) & (token >= 0), token, T)
        results = tuple(
            all.at[:, place].set(jnp.moveaxis(one, 1, 0), mode="drop")
            for all, one in zip(results, of_block, strict=True)
        )
        return carry, results

    blank = tuple(vary_like(jnp.zeros((W, T, G, H), dtype), carry) for dtype in dtypes)
    return jax.lax.fori_loop(0, blocks, body, (carry, blank))


def _setting(weights: tuple, bound: float | None, interpret: bool) -> tuple[gru.Setting, jax.Array]:
    """The kernels' setting and their weights, ``(terms, 3, tiles, 64, 64)``."""
    terms = TERMS[weights[0].dtype.name]
    return gru.Setting(terms, bound, interpret), split(jnp.stack([_diagonal(weight) for weight in weights]), terms)


def _heads_a_tile(H: int) -> int:
    return max(1, L // max(H, 1))


def _diagonal(weight: jax.Array) -> jax.Array:
    """``(W, H, H)`` → ``(tiles, 64, 64)``, as many heads as fit along the diagonal of each."""
    W, H, _ = weight.shape
    p = _heads_a_tile(H)
    weight = jnp.pad(weight, [(0, -W % p), (0, 0), (0, 0)]).reshape(-1, p, H, H)
    place = jnp.eye(p, dtype=bool)[:, None, :, None]
    diagonal = jnp.where(place, weight[:, :, :, None, :], 0).reshape(-1, p * H, p * H)
    return jnp.pad(diagonal, [(0, 0), (0, L - p * H), (0, L - p * H)])


def _tiled(x: jax.Array) -> jax.Array:
    """``(…, W, B, G, H)`` → ``(…, tiles, B·G, 64)``, rows filled up to a multiple of 8."""
    *before, W, B, G, H = x.shape
    p = _heads_a_tile(H)
    lead = [(0, 0)] * len(before)
    x = jnp.pad(x.reshape(*before, W, B * G, H), [*lead, (0, -W % p), (0, 0), (0, 0)])
    x = jnp.swapaxes(x.reshape(*before, -1, p, B * G, H), -3, -2).reshape(*before, -1, B * G, p * H)
    return jnp.pad(x, [*lead, (0, 0), (0, -B * G % ROWS), (0, L - p * H)])


def _untiled(x: jax.Array, like: jax.Array) -> jax.Array:
    """Inverse of `_tiled`, in the shape of ``like``."""
    *before, W, B, G, H = like.shape
    p = _heads_a_tile(H)
    x = x[..., : B * G, : p * H].reshape(*before, -1, B * G, p, H)
    x = jnp.swapaxes(x, -3, -2).reshape(*before, -1, B * G, H)
    return x[..., :W, :, :].reshape(like.shape)


def _rows(remaining: jax.Array, h: jax.Array) -> jax.Array:
    """Steps left, ``(B,)``, for each row of a tile, filled up to a multiple of 64."""
    rows = jnp.repeat(remaining.astype(jnp.int32), h.shape[2])
    return jnp.pad(rows, (0, -rows.size % L))
