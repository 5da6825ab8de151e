"""The sharding functions inside `shard_map` on a mesh of eight devices; tests/calls has their laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.tools import normal, pull_back

SIZES = {"dp": 2, "tp": 4}


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


def on_mesh(mesh, function, *args):
    """The results of each device for replicated arguments, stacked to ``(dp, tp, …)``."""

    def device(*args):
        return jax.tree.map(lambda x: varying(x)[None, None], function(*args))

    def varying(x):
        missing = set(SIZES) - set(jax.typeof(x).manual_axis_type.varying)
        return jax.lax.pcast(x, tuple(missing), to="varying") if missing else x

    return jax.jit(jax.shard_map(device, mesh=mesh, in_specs=P(), out_specs=P("dp", "tp")))(*args)


def test_split_differentiates(mesh):
    """Every row goes to one device along the axis and to each along the other: the gradient of the sum counts them."""
    x = jnp.asarray(normal(np.random.default_rng(1), 8, 3, dtype=np.float32))

    def loss(x):
        def device(x):
            return jnp.sum(jax_impl.split_array_over_mesh(x, "tp", 0))[None]

        return jax.shard_map(device, mesh=mesh, in_specs=P(), out_specs=P("tp"))(x).sum()

    value, (gradient,) = pull_back(jax.jit(loss), (x,), jnp.float32(1))
    np.testing.assert_allclose(value, x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(gradient, jnp.ones_like(x))


def test_traced_mask(mesh):
    masked = on_mesh(mesh, lambda w, at: jax_impl.stack_params(w, "tp", mask_except=at).value, jnp.ones((3,)), 2)
    assert [t for t in range(4) if masked[0, t].any()] == [2]
