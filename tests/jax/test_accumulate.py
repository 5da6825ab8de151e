"""Gradient accumulation: keys, transforms, and the number of times a loss is traced."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.test_sequence_parallel import collectives
from tests.jax.tools import assert_close, normal

B, MINIBATCHES = 8, 4


def apply_fn(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def loss_fn(params, apply_fn, batch, rng):
    prediction = apply_fn(params, batch["x"])
    noise = 0.1 * jax.random.normal(rng, prediction.shape)
    error = jnp.mean((prediction + noise - batch["y"]) ** 2)
    metrics = {"loss": (error, 1), "rows": batch["x"].shape[0]}
    return error, (metrics, {"mean": jnp.mean(prediction, axis=0), "nothing": None})


def call(dtype=np.float32):
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(normal(rng, 3, 2), dtype), "b": jnp.asarray(normal(rng, 2), dtype)}
    batch = {"x": normal(rng, B, 3, dtype=np.float32), "y": normal(rng, B, 2, dtype=np.float32), "none": None}
    return SimpleNamespace(params=params, apply_fn=apply_fn), batch


def test_scan_compiles_the_loss_once():
    """Counted: the loss is traced as often whatever the number of minibatches, and the loop as often as there are."""
    state, batch = call()
    traced = []

    def counted(*x):
        traced.append(1)
        return loss_fn(*x)

    counts = {}
    for use_scan in (False, True):
        for minibatches in (2, 8):
            traced.clear()
            jax.make_jaxpr(
                lambda rng, n=minibatches, scan=use_scan: jax_impl.accumulate_gradients(
                    state, batch, rng, n, counted, use_scan=scan
                )
            )(jax.random.key(0))
            counts[use_scan, minibatches] = len(traced)
    assert counts[False, 2] == 2
    assert counts[False, 8] == 8
    assert counts[True, 2] == counts[True, 8] <= 2


def test_traced_weights():
    """Their values are not known, so those that would be refused make every gradient NaN."""
    state, batch = call(jnp.bfloat16)
    del batch["none"]

    @jax.jit
    def run(weights, total):
        rng = jax.random.key(0)
        options = {"weights": weights, "total_weight": total}
        return jax_impl.accumulate_gradients(state, batch, rng, MINIBATCHES, loss_fn, use_scan=True, **options)[0]

    weights = jnp.array([0, 3, 1, 2])
    given = jax_impl.accumulate_gradients(
        state, batch, jax.random.key(0), MINIBATCHES, loss_fn, weights=weights, total_weight=np.float32(12)
    )[0]
    assert_close(run(weights, 12), given, 1e-2)
    assert_close(jax.tree.map(lambda x: 2 * x, run(weights, 12)), run(weights, None), 1e-2)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(given))
    for bad, total in ((0 * weights, None), (-weights, 1), (weights, 0), (weights.at[0].set(-1), None)):
        assert all(jnp.isnan(x).all() for x in jax.tree.leaves(run(bad, total)))


@pytest.mark.parametrize("use_scan", [False, True])
def test_gradients_are_added_up_over_devices_once(use_scan):
    """In float32, after the last minibatch; what does not depend on a device's part does not vary over devices."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(normal(rng, 3, 2), jnp.bfloat16), "b": jnp.zeros(2), "own": jnp.ones((8, 2))}
    batch = {"x": normal(rng, 64, 3, dtype=np.float32), "y": normal(rng, 64, 2, dtype=np.float32)}

    def loss(params, apply_fn, batch, rng):
        error = jnp.sum((apply_fn(params, batch["x"]) + params["own"][0] - batch["y"]) ** 2)
        return error, ({"error": error, "norm": jnp.sum(params["b"] ** 2)}, {"large": params["b"] > 1})

    def device(params, batch):
        state = SimpleNamespace(params=params, apply_fn=apply_fn)
        gradients, metrics, mutable = jax_impl.accumulate_gradients(
            state, batch, jax.random.key(0), MINIBATCHES, loss, use_scan=use_scan
        )
        return gradients, (metrics["error"][None], metrics["norm"], mutable["large"])

    specs = {"w": P(), "b": P(), "own": P("data")}
    sharded = jax.jit(
        jax.shard_map(
            device, mesh=mesh, in_specs=(specs, P("data")), out_specs=(specs, (P("data"), P(), P())), check_vma=True
        )
    )
    gradients, (errors, norm, large) = sharded(params, batch)
    assert large.shape == (MINIBATCHES, 2) and norm == 0

    def of_batch(params):
        error = apply_fn(params, batch["x"]) + jnp.repeat(params["own"], 8, 0) - batch["y"]
        return jnp.sum(error**2) / MINIBATCHES

    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    value, expected = jax.value_and_grad(of_batch)(wide)
    assert_close(gradients, jax.tree.map(lambda x, p: x.astype(p.dtype), expected, params), 1e-2)
    assert_close(
        {name: gradients[name] for name in ("b", "own")}, {name: expected[name] for name in ("b", "own")}, 1e-5
    )
    assert_close(errors.sum() / MINIBATCHES, value, 1e-5)
    program = sharded.lower(params, batch).compile().as_text()
    gathered = collectives(program)
    assert list(gathered) == ["all-reduce"] and sum(gathered["all-reduce"]) <= 3 * 2 + 2 + 1 + 2 * MINIBATCHES
    assert not re.search(r"all-reduce\(.*/while/", program) and "bf16" not in "".join(
        line for line in program.splitlines() if " all-reduce(" in line
    )
