"""Gradient accumulation, sharding and the layers of the spec."""

from types import SimpleNamespace

import numpy as np
import pytest

import reference
from reference import Partitioned


def training(rng):
    params = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2).astype(np.float32)}
    batch = {"x": rng.normal(size=(12, 3)), "y": (rng.normal(size=(12, 2)),)}

    def apply_fn(params, x):
        return np.tanh(x @ params["w"] + params["b"])

    def loss_fn(params, apply_fn, batch, rng):
        error = apply_fn(params, batch["x"]) - batch["y"][0]
        noise = np.random.default_rng(rng).normal()
        metrics = {"count": len(error), "noise": noise}
        return (error**2).mean() + noise * params["w"][0, 0], (metrics, {"seen": error.sum(0)})

    return SimpleNamespace(params=params, apply_fn=apply_fn), batch, loss_fn


@pytest.mark.parametrize("num_minibatches", [1, 3, 12])
def test_accumulated_gradient_is_the_mean(num_minibatches):
    state, batch, loss_fn = training(np.random.default_rng(0))
    gradients, metrics, mutable = reference.accumulate_gradients(state, batch, 7, num_minibatches, loss_fn)
    x, y, w, b = batch["x"], batch["y"][0], state.params["w"], state.params["b"].astype(float)
    a = np.tanh(x @ w + b)
    du = 2 * (a - y) * (1 - a**2) / y.size
    expected = x.T @ du
    spawned = np.random.SeedSequence(7, spawn_key=(0,)).spawn(num_minibatches)
    noise = [np.random.default_rng(int(seed.generate_state(1, np.uint64)[0])).normal() for seed in spawned]
    expected[0, 0] += np.mean(noise)
    np.testing.assert_allclose(gradients["w"], expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(gradients["b"], du.sum(0), rtol=1e-6)
    assert {name: g.dtype for name, g in gradients.items()} == {"w": np.float64, "b": np.float32}
    assert metrics["count"] == 12
    np.testing.assert_allclose(metrics["noise"], np.sum(noise))
    assert mutable["seen"].shape == (num_minibatches, 2)
    np.testing.assert_allclose(mutable["seen"].sum(0), (a - y).sum(0), rtol=1e-6)


def test_loop_and_scan_agree_and_none_passes():
    state, batch, loss_fn = training(np.random.default_rng(1))

    def without_mutable(*args):
        loss, (metrics, _) = loss_fn(*args)
        return loss, (metrics, None)

    loop = reference.accumulate_gradients(state, batch, 3, 4, without_mutable)
    scan = reference.accumulate_gradients(state, batch, 3, 4, without_mutable, use_scan=True)
    assert loop[2] is None
    assert scan[2] is None
    for name in loop[0]:
        np.testing.assert_allclose(loop[0][name], scan[0][name], rtol=1e-13)
    for name in loop[1]:
        np.testing.assert_allclose(loop[1][name], scan[1][name], rtol=1e-13)


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_stack_labels_the_dimension_it_makes_and_unstack_undoes_it(axis):
    tree = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": Partitioned(np.ones((4, 2)), ("dp", None))}
    stacked = reference.stack_params(tree, "tp", axis, axis_index=1, axis_size=2)
    for box in stacked.values():
        at = box.names.index("tp")
        assert at == axis % 3
        assert box.value.shape[at] == 1
        assert len(box.names) == box.value.ndim
    assert stacked["a"].value.dtype == np.float16
    back = reference.unstack_params(stacked, "tp")
    np.testing.assert_array_equal(back["a"], tree["a"])
    assert back["b"].names == ("dp", None)
    np.testing.assert_array_equal(back["b"].value, tree["b"].value)


def test_mask_keeps_one_shard_and_the_dtype():
    tree = [np.ones(3, dtype=np.int32)]
    shards = [reference.stack_params(tree, "tp", 0, 2, axis_index=d, axis_size=3)[0].value for d in range(3)]
    assert [shard.sum() for shard in shards] == [0, 0, 3]
    assert all(shard.dtype == np.int32 for shard in shards)


def test_slices_put_together_are_the_array():
    x = np.arange(2 * 12).reshape(2, 12)
    parts = [reference.split_array_over_mesh(x, "tp", -1, axis_index=d, axis_size=4) for d in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), x)
    sizes = {"dp": 2, "tp": 3}
    places = [{"dp": a, "tp": b} for a in range(2) for b in range(3)]
    of_both = [
        reference.split_array_over_mesh(x, ("dp", "tp"), 1, axis_index=place, axis_size=sizes) for place in places
    ]
    np.testing.assert_array_equal(np.concatenate(of_both, axis=1), x)


def test_seeds_differ_along_the_axis_alone():
    seeds = {
        (a, b): reference.fold_rng_over_axis(5, "tp", axis_index={"dp": a, "tp": b}, axis_size={"dp": 2, "tp": 3})
        for a in range(2)
        for b in range(3)
    }
    assert len(set(seeds.values())) == 3
    assert seeds[0, 1] == seeds[1, 1]


def test_gru_layer_is_its_parts():
    rng = np.random.default_rng(2)
    layer = reference.GRU(5, 4, 7, 1, 2, 3, 6, 1, 2, True, None, rng=3)
    x, state = rng.normal(size=(2, 9, 5)), rng.normal(size=(2, 6, 4))
    y, last = layer(x, state)
    p = layer.params
    heads = (x @ p["input_projection"]["kernel"] + p["input_projection"]["bias"]).reshape(2, 9, 6, 4)
    inner, expected_last = reference.gru(
        heads[:, :, :1],
        p["state_weight"],
        heads[:, :, 1:3],
        p["forget_weight"],
        heads[:, :, 3:],
        p["reset_weight"],
        state,
    )
    expected = inner.reshape(2, 9, 24) @ p["output_projection"]["kernel"] + p["output_projection"]["bias"]
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(last, expected_last)
    assert all(0 < np.abs(p[f"{name}_weight"]).max() <= 0.5 for name in ("state", "forget", "reset"))
    packed, _ = layer(x[0], state[:1], np.array([0, 9]))
    np.testing.assert_allclose(packed, y[0], rtol=1e-13)
