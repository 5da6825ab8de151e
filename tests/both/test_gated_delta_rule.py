"""The gated delta rule against the loop: sizes, lengths, groups of heads, packings, options, resets, strong gates."""

import numpy as np
import pytest

import reference
from tests.both.tools import assert_close, native, relative_error

NAMES = ("q", "k", "v", "g", "beta", "initial_state")
ROUNDOFF = {"float64": 1e-13, "float32": 5e-6, "bfloat16": 2.0**-6}
"""Largest error of an array, as a part of its largest element: dozens of roundings of values of its size; of bfloat16,
one of the result."""


def inputs(tokens, heads, K, V, *, sequences=2, seed=0, decay=0.1, resets=0.0, beta=True, state=True):
    """q, k, v, g, beta, initial_state; keys have length 1, so that no step makes an error grow."""
    rng = np.random.default_rng(seed)
    q, k, v, g, b = (
        rng.normal(size=(*tokens, count, *width))
        for count, width in zip(heads, ((K,), (K,), (V,), (), ()), strict=True)
    )
    g = np.where(rng.random(g.shape) < resets, -np.inf, -decay * np.abs(g))
    S = rng.normal(size=(sequences, max(heads), K, V))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [q, k, v, g, 2 / (1 + np.exp(-b)) if beta else None, S if state else None]


def check(framework, arrays, dtype="float64", chunk_size=None, cu_seqlens=None, **options):
    """Values and gradients are those of the reference, for the arrays rounded to the dtype."""
    low = dtype == "bfloat16"
    wide = "float32" if low else dtype
    dtypes = (dtype, dtype, dtype, wide, wide, wide)
    with framework.wide(dtype == "float64"):
        given = [None if x is None else framework.array(x, each) for x, each in zip(arrays, dtypes, strict=True)]
        exact = {name: None if x is None else framework.numpy(x) for name, x in zip(NAMES, given, strict=True)}
        bounds = {} if cu_seqlens is None else {"cu_seqlens": np.array(cu_seqlens)}
        values = reference.gated_delta_rule(**exact, **bounds, **options)
        rng = np.random.default_rng(1)
        upstream = [
            framework.array(rng.normal(size=x.shape), each) for x, each in zip(values, (dtype, wide), strict=True)
        ]
        do, dstate = map(framework.numpy, upstream)
        gradients = reference.gated_delta_rule_backward(**exact, **bounds, **options, do=do, dstate=dstate)

        present = [name for name, x in exact.items() if x is not None]

        def call(*present_arrays):
            named = dict(zip(present, present_arrays, strict=True))
            packing = {} if cu_seqlens is None else {"cu_seqlens": framework.array(np.array(cu_seqlens), "int32")}
            return framework.package.gated_delta_rule(**named, **packing, chunk_size=chunk_size, **options)

        outputs, found = framework.pull_back(call, [x for x in given if x is not None], upstream)
        assert [framework.dtype_of(x) for x in outputs] == [dtype, wide]
        outputs, found = ([framework.numpy(x) for x in each] for each in (outputs, found))
    assert_close([*outputs, *found], [*values, *(gradients[name] for name in present)], ROUNDOFF[dtype])
    return dict(zip(present, found, strict=True))


HEADS = (2, 1, 4, 2, 4)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("K, V", [(16, 16), (64, 128), (128, 64), (7, 33), (3, 1)])
@pytest.mark.parametrize("S", [0, 1, 31, 32, 33, 67])
def test_sizes(framework, S, K, V, dtype):
    check(framework, inputs((2, S), HEADS, K, V), dtype)


@pytest.mark.grid
@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("chunk_size", [1, 7, None, 100])
@pytest.mark.parametrize("heads", [(1, 1, 1, 1, 1), (4, 4, 2, 1, 2), (1, 2, 1, 4, 1), (3, 1, 1, 1, 3)])
def test_heads_and_options(framework, heads, chunk_size, state, beta):
    arrays = inputs((2, 67), heads, 5, 4, state=state, beta=beta)
    check(framework, arrays, chunk_size=chunk_size, scale=-0.3, qk_norm_eps=0.5)


@pytest.mark.parametrize("options", [{}, {"qk_norm_eps": 0}, {"scale": 0.0}], ids=str)
def test_lengths_of_vectors(framework, options):
    """With an eps of 0 vectors are divided by their lengths, and steps after the end of a sequence are not NaN."""
    check(framework, inputs((2, 40), HEADS, 5, 4), **options)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("bounds", [[0, 0, 5, 5, 70, 71, 104, 104], [0, 104], [0, 0], [0]], ids=str)
def test_packings(framework, bounds, chunk_size):
    arrays = inputs((bounds[-1],), HEADS, 5, 4, sequences=len(bounds) - 1, resets=0.02)
    check(framework, arrays, cu_seqlens=bounds, chunk_size=chunk_size)


@pytest.mark.parametrize("B", [0, 1, 3])
def test_batches(framework, B):
    check(framework, inputs((B, 40), HEADS, 5, 4, sequences=B))


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("decay, resets", [(0.1, 0.05), (0.1, 1.0), (100.0, 0.0), (100.0, 0.1), (1e-6, 0.0)])
def test_resets_and_strong_gates(framework, decay, resets, dtype):
    """Decays lose no digits however strong the gates are; the gradient of a reset's gate is 0."""
    arrays = inputs((2, 130), HEADS, 5, 4, decay=decay, resets=resets)
    found = check(framework, arrays, dtype)
    assert not found["g"][np.isinf(arrays[3])].any()


@pytest.mark.parametrize("at", [0, 1, 31, 32, 63])
def test_nothing_before_a_reset_counts(framework, at):
    """It is as if the sequence began there, whatever came before."""
    q, k, v, g, beta, S = inputs((1, 64), HEADS, 5, 4, sequences=1)
    g[:, at] = -np.inf
    with framework.wide(True):
        whole = framework.package.gated_delta_rule(
            *native(framework, [q, k, v, g, beta], "float64"), initial_state=framework.array(S, "float64")
        )
        rest = framework.package.gated_delta_rule(
            *native(framework, [x[:, at:] for x in (q, k, v, g, beta)], "float64")
        )
        for x, y in zip((whole[0][:, at:], whole[1]), rest, strict=True):
            assert relative_error(framework.numpy(x), framework.numpy(y)) < ROUNDOFF["float64"]


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("options", [{}, {"scale": 0.3, "qk_norm_eps": 1e-6}], ids=str)
@pytest.mark.parametrize("beta", [True, False])
def test_single_steps(framework, beta, options, dtype):
    """Steps one by one give what whole sequences give, and their gradient is that of a sequence of one step."""
    arrays = inputs((2, 1), HEADS, 16, 8, beta=beta)
    low = "float32" if dtype == "bfloat16" else dtype
    dtypes = (dtype, dtype, dtype, low, low, low)
    with framework.wide(dtype == "float64"):
        given = [framework.array(x, each) for x, each in zip(arrays, dtypes, strict=True) if x is not None]

        def step(q, k, v, g, *rest):
            tokens = (x[:, 0] for x in (q, k, v, g, *rest[:-1]))
            return framework.package.gated_delta_step(*tokens, *(() if beta else (None,)), rest[-1], **options)

        def whole(*given):
            o, S = framework.package.gated_delta_rule(*given[:-1], initial_state=given[-1], **options)
            return o[:, 0], S

        upstream = [
            framework.array(np.random.default_rng(1).normal(size=(2, 4, *width)), each)
            for width, each in (((8,), dtype), ((16, 8), low))
        ]
        (got, got_gradients), (expected, gradients) = (
            framework.pull_back(function, given, upstream) for function in (step, whole)
        )
        assert_close(
            [framework.numpy(x) for x in (*got, *got_gradients)],
            [framework.numpy(x) for x in (*expected, *gradients)],
            ROUNDOFF[dtype],
        )
