"""mLSTM and GRU as anybody would first write them in JAX: a step and `jax.lax.scan`, right or with chosen faults."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _weight(x: Any, y: Any) -> Any:
    """``exp(x − y)``, 0 where x is −∞, in value and in gradient."""
    empty = jnp.isneginf(x)
    return jnp.where(empty, 0.0, jnp.exp(jnp.where(empty, 0.0, x) - jnp.where(empty, 0.0, y)))


def _floor(m: Any) -> tuple[Any, Any]:
    """``exp(−min(m, 64))``, and where that is infinite: there h is 0, and 1 stands in for the floor."""
    infinite = jnp.isinf(jnp.exp(-m))
    return jnp.exp(-jnp.minimum(jnp.where(infinite, 0.0, m), 64.0)), infinite


def mlstm_scan(*faults: str) -> Callable:
    """A function ``mlstm`` over the steps of a dense call, with the named faults."""

    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, cu_seqlens=None, eps=0.0, **unused: Any):
        if cu_seqlens is not None:
            raise NotImplementedError("packed sequences are not supported")
        dtype, wide = v.dtype, jnp.float64 if v.dtype == jnp.float64 else jnp.float32
        q, k, v, i, f = (jnp.moveaxis(x.astype(wide), 1, 0) for x in (q, k, v, i, f))
        _S, B, N, K = q.shape
        q = q / math.sqrt(K)
        if "gradient does not reach the forget gate" in faults:
            f = jax.lax.stop_gradient(f)
        if initial_state is None:
            carry = (jnp.zeros((B, N, K, v.shape[-1]), wide), jnp.zeros((B, N, K), wide), jnp.zeros((B, N), wide))
        else:
            carry = tuple(initial_state)

        def step(carry: Any, inputs: Any) -> Any:
            C, n, m = carry
            q, k, v, i, f = inputs
            a = jax.nn.log_sigmoid(f)
            if "forget gate is not a logarithm" in faults:
                a = jax.nn.sigmoid(f) - 1
            m_new = jnp.maximum(a + m, i)
            decay, gain = _weight(a + m, m_new), _weight(i, m_new)
            C = decay[..., None, None] * C + gain[..., None, None] * k[..., :, None] * v[..., None, :]
            n = decay[..., None] * n + gain[..., None] * k
            nu = jnp.sum(n * q, axis=-1)
            floor, nothing = _floor(m_new)
            Y = jnp.maximum(jnp.abs(nu), floor) + eps
            if "normaliser detached" in faults:
                Y = jax.lax.stop_gradient(Y)
            h = jnp.where(nothing[..., None], 0.0, jnp.einsum("bnkv,bnk->bnv", C, q) / Y[..., None])
            return (C, n, m_new), h

        last, h = jax.lax.scan(step, carry, (q, k, v, i, f))
        h = jnp.moveaxis(h, 0, 1).astype(dtype)
        return (h, last) if return_state else h

    return mlstm


def gru_scan(*faults: str) -> Callable:
    """A function ``gru`` over the steps of a dense call, with the named faults."""

    def gru(
        input,
        weight,
        forget_input,
        forget_weight,
        reset_input,
        reset_weight,
        input_state=None,
        gradient_clipping=None,
        cu_seqlens=None,
        max_seqlen=None,
    ):
        if cu_seqlens is not None or gradient_clipping is not None:
            raise NotImplementedError("neither packed sequences nor clipping are supported")
        wide = jnp.float64 if input.dtype == jnp.float64 else jnp.float32
        arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
        N = max(x.shape[-2] if at % 2 == 0 else x.shape[0] for at, x in enumerate(arrays))

        def heads(x: Any, axis: int) -> Any:
            times = N // x.shape[axis]
            return jnp.concatenate([x] * times, axis) if "heads tiled" in faults else jnp.repeat(x, times, axis)

        x, W, xf, Wf, xr, Wr = (heads(a.astype(wide), -2 if at % 2 == 0 else 0) for at, a in enumerate(arrays))
        h = jnp.zeros((x.shape[0], N, x.shape[-1]), wide) if input_state is None else input_state

        def step(h: Any, inputs: Any) -> Any:
            x, xf, xr = inputs
            r = jax.nn.sigmoid(_times(h, Wr) + xr)
            f = jax.nn.sigmoid(_times(h, Wf) + xf)
            z = jnp.tanh((r * _times(h, W) if "reset gate after the product" in faults else _times(r * h, W)) + x)
            h = f * h + (1 - f) * z
            return h, h

        last, y = jax.lax.scan(step, h, tuple(jnp.moveaxis(each, 1, 0) for each in (x, xf, xr)))
        return jnp.moveaxis(y, 0, 1).astype(input.dtype), last

    return gru


def _times(h: Any, W: Any) -> Any:
    return jnp.einsum("bni,nij->bnj", h, W)
