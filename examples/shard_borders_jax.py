"""A causal convolution and a token shift over sequences whose steps are sharded over a mesh axis, in JAX.

Both read steps before a token, which may be on the device before. They are model parts to copy, next to
`jax_impl.mlstm(…, sequence_axis=…)` inside the same ``jax.shard_map``; without `sequence_axis` they are those of whole
sequences.
"""

import jax
import jax.numpy as jnp


def preceding(x: jax.Array, steps: int, sequence_axis: str | None = None) -> jax.Array:
    """The steps before the first one of this device, from its neighbours; zeros before the first device.

    Every device sends ``steps`` steps to the next one, or all of its own, if it has fewer, to as many as need them.

    Args:
        x: the steps of this device, ``(B, S_local, …)``.
        steps: how many to get.
        sequence_axis: the mesh axis that shards the steps; None if one device has them all.

    Returns:
        ``(B, steps, …)``. Its gradient goes back to the devices that own the steps.
    """
    got = jnp.zeros((x.shape[0], 0, *x.shape[2:]), x.dtype)
    if sequence_axis is not None and x.shape[1]:
        devices, sent = jax.lax.axis_size(sequence_axis), x[:, max(x.shape[1] - steps, 0) :]
        for distance in range(1, min(devices, -(-steps // x.shape[1]) + 1)):
            pairs = [(device, device + distance) for device in range(devices - distance)]
            got = jnp.concatenate([jax.lax.ppermute(sent, sequence_axis, pairs), got], axis=1)
    got = got[:, max(got.shape[1] - steps, 0) :]
    return jnp.pad(got, [(0, 0), (steps - got.shape[1], 0)] + [(0, 0)] * (x.ndim - 2))


def causal_convolution(
    x: jax.Array, weight: jax.Array, cu_seqlens: jax.Array | None = None, sequence_axis: str | None = None
) -> jax.Array:
    """A depthwise causal convolution, ``y_t = Σ_d weight[d] ⊙ x_{t−d}``, that reads nothing before its own sequence.

    Args:
        x: ``(B, S, D)``, or the packed ``(T, D)`` with `cu_seqlens`; of sharded steps those of this device.
        weight: ``(W, D)``.
        cu_seqlens: ``(B+1,)``, the start and end of each sequence among the tokens of all devices.
        sequence_axis: the mesh axis that shards the steps; None if one device has them all.

    Returns:
        y, with the shape of x.
    """
    tokens = x[None] if cu_seqlens is not None else x
    S, reach = tokens.shape[1], weight.shape[0] - 1
    longer = jnp.concatenate([preceding(tokens, reach, sequence_axis), tokens], axis=1)
    y = jnp.zeros_like(tokens)
    for delay, tap in enumerate(weight):
        before = longer[:, reach - delay : reach - delay + S]
        if cu_seqlens is not None:
            before = jnp.where((_place(S, cu_seqlens, sequence_axis) >= delay)[:, None], before, 0)
        y += tap * before
    return y.reshape(x.shape)


def token_shift(
    x: jax.Array, mix: jax.Array, cu_seqlens: jax.Array | None = None, sequence_axis: str | None = None
) -> jax.Array:
    """Each token mixed with the one before it, ``y_t = x_t + mix ⊙ (x_{t−1} − x_t)``; arguments as above, mix ``(D,)``.

    The token before the first one of a sequence is 0.
    """
    return causal_convolution(x, jnp.stack([1 - mix, mix]), cu_seqlens, sequence_axis)


def _place(T: int, cu_seqlens: jax.Array, sequence_axis: str | None) -> jax.Array:
    """The place of each token of this device in its sequence, from 0."""
    token = jnp.arange(T) + (0 if sequence_axis is None else T * jax.lax.axis_index(sequence_axis))
    return token - cu_seqlens[jnp.searchsorted(cu_seqlens, token, side="right") - 1]
