"""Packed minibatches of an mLSTM with unequal numbers of tokens that count: the gradient is that of the whole batch.

The law `accumulate_gradients.weighted` tries any weights and totals.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.both.tools import TOLERANCE, relative_error

N, K, T = 2, 3, 20
COUNTS = (12, 3, 0, 19)
"""The number of tokens with a target in each minibatch."""
BOUNDS = ([0, 7, 7, 20], [0, 1, 19, 20], [0, 5, 10, 20], [0, 20, 20, 20])
FORMS = ("accumulate_gradients_loop", "accumulate_gradients_scan")


def arrays(framework):
    """Parameters, and a batch with a row of tokens for each minibatch."""
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(4, N * width)) for name, width in zip("qkvif", (K, K, K, 1, 1), strict=True)}
    batch = {"x": rng.normal(size=(len(COUNTS), T, 4)), "y": rng.normal(size=(len(COUNTS), T, N, K))}
    batch["counts"] = np.stack([rng.permutation(np.arange(T) < count) for count in COUNTS]).astype(float)
    params, batch = ({name: framework.array(x, "float32") for name, x in each.items()} for each in (params, batch))
    return params, batch | {"bounds": framework.array(np.array(BOUNDS), "int32")}


def mean_over_tokens(framework, params, x, y, counts, bounds) -> tuple[Any, Any]:
    """The mean over the tokens of a packing that count (NaN if none does), and the sum."""
    q, k, v, i, f = ((x @ params[name]).reshape(len(x), N, -1) for name in "qkvif")
    h = framework.package.mlstm(q, k, v, i[..., 0], f[..., 0] + 1, cu_seqlens=bounds)
    squares = (counts[:, None, None] * (h - y) ** 2).sum()
    return squares / counts.sum(), squares


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_of_the_mean_over_all_tokens(framework, form):
    params, batch = arrays(framework)

    def of_batch(*leaves):
        rows = [batch[name].reshape(-1, *batch[name].shape[2:]) for name in ("x", "y", "counts")]
        bounds = np.unique(np.concatenate([b * T + np.array(each) for b, each in enumerate(BOUNDS)]))
        whole = framework.array(bounds, "int32")
        return mean_over_tokens(framework, dict(zip(params, leaves, strict=True)), *rows, whole)[0]

    def loss_fn(params, apply_fn, minibatch, rng):
        rows = [minibatch[name][0] for name in ("x", "y", "counts", "bounds")]
        mean, squares = mean_over_tokens(framework, params, *rows)
        return mean, ({"squares": squares, "tokens": minibatch["counts"].sum()}, None)

    state, weights = SimpleNamespace(params=params, apply_fn=None), framework.array(np.array(COUNTS), "int32")
    gradients, metrics, _ = getattr(framework.package, form)(
        state, batch, framework.random_state(0), len(COUNTS), loss_fn, weights=weights
    )
    ones = [framework.array(np.ones(()), "float32")]
    (mean,), expected = framework.pull_back(of_batch, list(params.values()), ones)
    expected = [framework.numpy(x) for x in expected]
    scale = max(np.abs(x).max() for x in expected)
    for name, x in zip(params, expected, strict=True):
        assert relative_error(framework.numpy(gradients[name]), x, scale) < TOLERANCE["float32"], name
    total = framework.numpy(metrics["squares"]) / framework.numpy(metrics["tokens"])
    assert relative_error(total, framework.numpy(mean)) < TOLERANCE["float32"]


WITHOUT_A_SUM = [
    ("int64", (2**62, 2**62, 0, 2**62), None),
    ("float32", (3e38, 2e38, 0.0, 1e38), None),
    ("float32", (3e38, 2e38, 0.0, 1e38), 3e38),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "weights", "total"), WITHOUT_A_SUM)
def test_weights_whose_sum_is_not_representable(framework, form, dtype, weights, total):
    slopes = np.array([[1.0], [-3.0], [np.nan], [5.0]])

    def loss_fn(params, apply_fn, minibatch, rng):
        return (params["w"] * minibatch["x"][0]).sum(), ({}, None)

    with framework.wide(dtype == "int64"):
        state = SimpleNamespace(params={"w": framework.array(np.ones(1), "float32")}, apply_fn=None)
        batch = {"x": framework.array(slopes, "float32")}
        given = {"weights": framework.array(np.array(weights), dtype), "total_weight": total}
        accumulate = getattr(framework.package, form)
        gradients, _, _ = accumulate(state, batch, framework.random_state(0), 4, loss_fn, **given)
        found = framework.numpy(gradients["w"])
    expected = sum(w * slope for w, (slope,) in zip(weights, slopes, strict=True) if w) / (total or sum(weights))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
