"""What the blocks in Flax add to JAX's own functions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose

from examples.language_model.flax_blocks import gelu

POINTS = np.linspace(-6, 6, 101)
PHI = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in POINTS])


def test_gelu_and_its_derivative() -> None:
    with jax.enable_x64():
        x = jnp.array(POINTS)
        assert_allclose(gelu(x), POINTS * PHI, rtol=1e-13, atol=1e-15)
        slope = PHI + POINTS * np.exp(-(POINTS**2) / 2) / math.sqrt(2 * math.pi)
        assert_allclose(jax.vmap(jax.grad(gelu))(x), slope, rtol=1e-13, atol=1e-15)


def test_gelu_keeps_its_dtype_and_is_differentiated_inside_shard_map() -> None:
    x = jnp.linspace(-3, 3, 8, dtype=jnp.bfloat16)

    def gradient(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: gelu(x).astype(jnp.float32).sum())(x)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharded = jax.jit(functools.partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(gradient))
    assert sharded(x).dtype == jnp.bfloat16
    assert_allclose(sharded(x).astype(np.float32), gradient(x).astype(np.float32))
