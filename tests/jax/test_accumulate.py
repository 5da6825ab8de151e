"""Gradient accumulation: the number of times that a loss is traced, and weights that are traced."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import jax_impl
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
