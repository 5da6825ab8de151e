"""The sharding functions inside `shard_map` on a mesh of eight devices; tests/calls has their laws."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_impl
import reference
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


def places():
    return [(d, t) for d in range(2) for t in range(4)]


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


@pytest.mark.parametrize(("axis", "mask_except"), [(0, None), (-2, 2)])
def test_stack_and_unstack(mesh, axis, mask_except):
    """Each device's shard and its labels are the reference's; unstacking restores the original."""
    rng = np.random.default_rng(2)
    w = jnp.asarray(normal(rng, 3, 2), jnp.bfloat16)
    boxes = {"w": w, "v": nn.Partitioned(normal(rng, 3, 2, dtype=np.float32), ("dp", None))}
    names = {}

    def device(params):
        stacked = jax_impl.stack_params(params, "tp", axis, mask_except)
        names.update({name: box.names for name, box in stacked.items()})
        back = jax_impl.unstack_params(stacked, "tp")
        again = jax_impl.stack_params(back, "tp", axis)
        assert jax.tree.structure(again) == jax.tree.structure(stacked)
        assert jax.tree.structure(back) == jax.tree.structure(params)
        return {name: box.value for name, box in stacked.items()}, back

    stacked, back = on_mesh(mesh, device, boxes)
    assert stacked["w"].dtype == jnp.bfloat16
    for d, t in places():
        expected = reference.stack_params(
            {"w": np.asarray(w.astype(jnp.float32)), "v": reference.Partitioned(boxes["v"].value, ("dp", None))},
            "tp",
            axis,
            mask_except,
            axis_index={"dp": d, "tp": t},
            axis_size=SIZES,
        )
        for name, box in expected.items():
            np.testing.assert_array_equal(stacked[name][d, t].astype(np.float32), box.value)
            assert names[name] == box.names
        kept = mask_except is None or t == mask_except
        np.testing.assert_array_equal(back["w"][d, t], w if kept else jnp.zeros_like(w))


def test_traced_mask(mesh):
    masked = on_mesh(mesh, lambda w, at: jax_impl.stack_params(w, "tp", mask_except=at).value, jnp.ones((3,)), 2)
    assert [t for t in range(4) if masked[0, t].any()] == [2]
