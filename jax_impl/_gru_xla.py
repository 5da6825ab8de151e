"""The GRU over dense sequences by XLA: one loop over steps forwards, one over blocks of steps on the way back.

Made for a CPU's caches as much as for an accelerator. Inputs are read and results written where they lie,
``(B, S, W, G, H)``, a step (on the way back a block of steps) at a time, so that nothing as long as the sequence is
transposed or kept but inputs and results. Within a block the gates are computed again, and the weights' gradients
summed, by products over all its steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._framework import vary_like

BLOCK = 32
"""Steps a block, at most."""


class Weights(NamedTuple):
    """Weights of the W groups, each ``(W, H, H)``."""

    W: jax.Array
    Wf: jax.Array
    Wr: jax.Array


def side_by_side(weights: Weights) -> tuple[jax.Array, jax.Array]:
    """W, and W_f beside W_r, ``(W, H, 2H)``, so that one product serves both gates."""
    return weights.W, jnp.concatenate([weights.Wf, weights.Wr], axis=-1)


def gates(
    dot: Callable, h: jax.Array, inputs: tuple, weights: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """r, f and z of many lanes, ``(W, …, H)``, from the states before them and weights `side_by_side`."""
    (x, xf, xr), (W, Wfr) = inputs, weights
    H = h.shape[-1]
    fr = dot("w...h,whk->w...k", h, Wfr)
    f, r = jax.nn.sigmoid(fr[..., :H] + xf), jax.nn.sigmoid(fr[..., H:] + xr)
    return r, f, jnp.tanh(dot("w...h,whk->w...k", r * h, W) + x)


def step_back(
    dot: Callable, bound: float | None, transposed: Weights, dh: jax.Array, at: tuple
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    """From the gradient that reaches h_t to the one that reaches h_{t−1}, and the gradients of x, x_f and x_r.

    Args:
        transposed: the weights transposed, so that no step has to.
        at: h_{t−1}, r, f, z and the output's cotangent at t, each ``(W, B, G, H)``.
    """
    h, r, f, z, dy = at
    dh = dy + (dh if bound is None else jnp.clip(dh, -bound, bound))
    dx = dh * (1 - f) * (1 - z * z)
    dxf = dh * (h - z) * f * (1 - f)
    drh = dot("wbgk,wkh->wbgh", dx, transposed.W)
    dxr = drh * h * r * (1 - r)
    through = dot("wbgk,wkh->wbgh", dxf, transposed.Wf) + dot("wbgk,wkh->wbgh", dxr, transposed.Wr)
    return dh * f + drh * r + through, (dx, dxf, dxr)


def forward(dot: Callable, inputs: tuple, weights: Weights, h0: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The state after every step, ``(B, S, W, G, H)``, and the last.

    Args:
        dot: an einsum in the precision of the call.
        inputs: x, x_f, x_r, ``(B, S, W, G, H)``, in the accumulation dtype.
        h0: ``(W, B, G, H)``.
    """
    y = vary_like(jnp.zeros(inputs[0].shape, h0.dtype), h0)
    S = y.shape[1]
    if S == 0:
        return y, jnp.copy(h0)
    both = side_by_side(weights)

    def body(t: jax.Array, loop: tuple) -> tuple[jax.Array, jax.Array]:
        h, y = loop
        x = tuple(jnp.moveaxis(jax.lax.dynamic_index_in_dim(part, t, 1, False), 1, 0) for part in inputs)
        _, f, z = gates(dot, h, x, both)
        h = f * h + (1 - f) * z
        return h, jax.lax.dynamic_update_index_in_dim(y, jnp.moveaxis(h, 0, 1), t, 1)

    last, y = jax.lax.fori_loop(0, S, body, (h0, y))
    return y, last


def backward(
    dot: Callable, bound: float | None, saved: tuple, weights: Weights, h0: jax.Array, dy: jax.Array, dlast: jax.Array
) -> tuple[tuple, Weights, jax.Array]:
    """Gradients of the three inputs ``(B, S, W, G, H)``, of the weights and of the first state.

    Args:
        saved: x, x_f, x_r and the state after every step, ``(B, S, W, G, H)``.
        bound: of clipping, None for none.
        dy: the output's cotangent, ``(B, S, W, G, H)``.
        dlast: the last state's, ``(W, B, G, H)``.
    """
    S = dy.shape[1]
    blocks = -(-S // BLOCK)
    size = -(-S // max(blocks, 1))
    dinputs = tuple(
        vary_like(jnp.zeros((dy.shape[0], blocks * size, *dy.shape[2:]), dlast.dtype), dlast) for _ in "xfr"
    )
    dweights = Weights(*(vary_like(jnp.zeros_like(weight), dlast) for weight in weights))
    if S == 0:
        return dinputs, dweights, jnp.copy(dlast)
    # Behind the last step f is 1: what comes in goes on.
    *inputs, y, dy = (jnp.pad(part, [(0, 0), (0, blocks * size - S), *[(0, 0)] * 3]) for part in (*saved, dy))
    both = side_by_side(weights)
    transposed = Weights(*(jnp.swapaxes(weight, -1, -2) for weight in weights))

    def body(number: jax.Array, loop: tuple) -> tuple:
        dh, dinputs, dweights = loop
        start = (blocks - 1 - number) * size

        def block(part: jax.Array) -> jax.Array:
            return jnp.transpose(jax.lax.dynamic_slice_in_dim(part, start, size, 1), (2, 1, 0, 3, 4))

        before = jnp.moveaxis(jax.lax.dynamic_index_in_dim(y, jnp.maximum(start - 1, 0), 1, False), 1, 0)
        first = jnp.where(start == 0, h0, before)
        h = jnp.concatenate([first[:, None], block(y)[:, :-1]], axis=1)
        r, f, z = gates(dot, h, tuple(map(block, inputs)), both)
        if blocks * size != S:
            f = jnp.where((start + jnp.arange(size) < S)[:, None, None, None], f, 1)
        dh, of_block = _block_back(dot, bound, transposed, dh, (h, r, f, z, block(dy)))
        pairs = zip(dweights, (r * h, h, h), of_block, strict=True)
        dweights = Weights(*(sum + dot("wsbgh,wsbgk->whk", of, by) for sum, of, by in pairs))
        dinputs = tuple(
            jax.lax.dynamic_update_slice_in_dim(all, jnp.transpose(one, (2, 1, 0, 3, 4)), start, 1)
            for all, one in zip(dinputs, of_block, strict=True)
        )
        return dh, dinputs, dweights

    dh0, dinputs, dweights = jax.lax.fori_loop(0, blocks, body, (dlast, dinputs, dweights))
    return tuple(part[:, :S] for part in dinputs), dweights, dh0


def _block_back(
    dot: Callable, bound: float | None, transposed: Weights, dh: jax.Array, at: tuple
) -> tuple[jax.Array, Any]:
    """`step_back` over the steps of a block, arrays ``(W, steps, B, G, H)``."""
    size = at[0].shape[1]

    def body(number: jax.Array, loop: tuple) -> tuple[jax.Array, tuple]:
        dh, results = loop
        t = size - 1 - number
        here = tuple(jax.lax.dynamic_index_in_dim(part, t, 1, False) for part in at)
        dh, found = step_back(dot, bound, transposed, dh, here)
        put = jax.lax.dynamic_update_index_in_dim
        return dh, tuple(put(all, one, t, 1) for all, one in zip(results, found, strict=True))

    blank = tuple(jnp.zeros_like(at[0]) for _ in "xfr")
    return jax.lax.fori_loop(0, size, body, (dh, blank))
