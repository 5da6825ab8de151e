"""The recurrences as plain loops over steps, for JAX to differentiate: what the gradients written by hand must equal.

Nothing here comes from `jax_impl`. Float64, dense layout; gates must be finite.
"""

import jax
import jax.numpy as jnp


def mlstm(q, k, v, i, f, C=None, n=None, m=None, *, eps=0.0, stabilize_correctly=True):
    """``(h, (C, n, m))`` by the definition.

    The memory is carried in the units of a frozen stabiliser, so that h knows m as a constant wherever the contract
    says so; the final memory is converted to the units of the stabiliser that is returned, which can be differentiated.
    """
    B, _, N, K = q.shape
    C = jnp.zeros((B, N, K, v.shape[-1])) if C is None else C
    n = jnp.zeros((B, N, K)) if n is None else n
    m = jnp.zeros((B, N)) if m is None else m

    def step(carry, x):
        C, n, frozen, m = carry
        q, k, v, i, f = x
        a = jax.nn.log_sigmoid(f)
        m = jnp.where(i > a + m, i, a + m)
        new = jax.lax.stop_gradient(m)
        decay, gain = jnp.exp(a + frozen - new), jnp.exp(i - new)
        C = decay[..., None, None] * C + gain[..., None, None] * k[..., :, None] * v[..., None, :]
        n = decay[..., None] * n + gain[..., None] * k
        q = q / jnp.sqrt(K)
        nu = jnp.sum(n * q, axis=-1)
        floor = jnp.exp(-jnp.minimum(new, 64.0)) if stabilize_correctly else jnp.ones_like(new)
        Y = jnp.where(jnp.abs(nu) > floor, jnp.abs(nu), floor) + eps
        return (C, n, new, m), jnp.einsum("bnkv,bnk->bnv", C, q) / Y[..., None]

    frozen = jax.lax.stop_gradient(m)
    scale = jnp.exp(m - frozen)
    start = (C * scale[..., None, None], n * scale[..., None], frozen, m)
    (C, n, frozen, m), h = jax.lax.scan(step, start, [jnp.moveaxis(x, 1, 0) for x in (q, k, v, i, f)])
    scale = jnp.exp(frozen - m)
    return jnp.moveaxis(h, 0, 1), (C * scale[..., None, None], n * scale[..., None], m)


@jax.custom_vjp
def clipped(h, bound):
    """The identity, whose gradient is clipped to ±bound."""
    return h


clipped.defvjp(lambda h, bound: (h, bound), lambda bound, dh: (jnp.clip(dh, -bound, bound), jnp.zeros_like(bound)))


def gru(x, W, xf, Wf, xr, Wr, h=None, *, bound=jnp.inf):
    """``(y, h)`` by the definition, every head with the input and weight that it reads."""
    N = max(x.shape[-2], W.shape[0], xf.shape[-2], Wf.shape[0], xr.shape[-2], Wr.shape[0])
    reads = [jnp.arange(N) * a.shape[axis] // N for a, axis in ((x, -2), (W, 0), (xf, -2), (Wf, 0), (xr, -2), (Wr, 0))]
    x, xf, xr = (a[..., reads[at], :] for a, at in ((x, 0), (xf, 2), (xr, 4)))
    W, Wf, Wr = (a[reads[at]] for a, at in ((W, 1), (Wf, 3), (Wr, 5)))
    h = jnp.zeros((x.shape[0], N, x.shape[-1])) if h is None else h
    bound = jnp.asarray(bound, x.dtype)

    def times(h, W):
        return jnp.einsum("bni,nij->bnj", h, W)

    def step(h, x):
        x, xf, xr = x
        r, f = jax.nn.sigmoid(times(h, Wr) + xr), jax.nn.sigmoid(times(h, Wf) + xf)
        h = f * h + (1 - f) * jnp.tanh(times(r * h, W) + x)
        return clipped(h, bound), h

    h, y = jax.lax.scan(step, h, [jnp.moveaxis(a, 1, 0) for a in (x, xf, xr)])
    return jnp.moveaxis(y, 0, 1), h
