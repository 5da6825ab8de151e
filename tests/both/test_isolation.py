"""What is in one packed sequence and head changes no bit of another's results and gradients: NaN, infinities, large
gates, and products beyond the dtype. In chunks of 16 steps, JAX has several sequences in one chunk."""

import numpy as np
import pytest

from tests.both.tools import mlstm_inputs, mlstm_state, native

BOUNDS = np.array([0, 5, 5, 12, 13, 40, 130])
B, HEAD, INF, NAN = len(BOUNDS) - 1, 1, np.inf, np.nan
NAMES = ("q", "k", "v", "i", "f", "C", "n", "m", "dh", "dC", "dn", "dm")
TOKENS = {0: 0, 3: 12, 4: 30, 5: 129}
"""A token of some sequences: the first, the only one, one in the middle, the last."""
VALUES = [
    *((name, NAN) for name in NAMES),
    *((name, INF) for name in NAMES if name != "f"),
    *(("i", size) for size in (3e3, 1e8)),
    *(("m", size) for size in (1e8, -1e9)),
]
PRODUCTS = {
    "scores": {"q": 1e30, "k": 1e30},
    "a memory": {"k": 1e30, "v": 1e30},
    "an initial state": {"C": 1e30, "q": 1e30},
    "gradients of h": {"dh": 5e37, "v": 1e6, "q": 1e-10},
    "of a final state": {"dC": 1e30, "v": 1e30},
}


@pytest.fixture
def run(framework):
    """Results and gradients of twelve arrays."""
    bounds = framework.array(BOUNDS, "int32")

    def call(*x):
        options = {"initial_state": tuple(x[5:]), "return_state": True, "cu_seqlens": bounds, "chunk_size": 16}
        h, last = framework.package.mlstm(*x[:5], **options)
        return [h, *last]

    both = framework.jit(lambda x, d: framework.pull_back(call, x, d))

    def results(arrays):
        arrays = native(framework, arrays.values(), "float32")
        return [framework.numpy(x) for part in both(arrays[:8], arrays[8:]) for x in part]

    return results


def drawn(size):
    """The arrays, with gates of this size."""
    rng = np.random.default_rng(11)
    tokens, state = mlstm_inputs(rng, BOUNDS[-1]), mlstm_state(rng, B, 3)
    cotangents = [rng.normal(size=x.shape) for x in (tokens[2], *state)]
    arrays = dict(zip(NAMES, [*tokens, *state, *cotangents], strict=True))
    return arrays | {name: size * arrays[name] for name in "if"}


def place(b, x):
    """The sequence and head in an array of tokens or of states."""
    return (slice(*BOUNDS[b : b + 2]) if len(x) == BOUNDS[-1] else b, HEAD)


def assert_alone(run, arrays, clean, b, what, tolerance=0.0):
    """Returns the results."""
    found = run(arrays)
    for x, y in zip(found, clean, strict=True):
        elsewhere = np.ones(x.shape, bool)
        elsewhere[place(b, x)] = False
        np.testing.assert_allclose(x[elsewhere], y[elsewhere], tolerance, tolerance, err_msg=str(what))
        assert np.isfinite(x[elsewhere]).all(), what
    return found


@pytest.mark.parametrize("size", [1.0, 1e6, 1e20])
def test_a_value_stays_in_its_sequence_and_head(framework, run, size):
    """Next to large gates too: whether the roundoff of m counts is one answer for all sequences, which a large gate
    gives in JAX, and a NaN never."""
    arrays = drawn(size)
    clean = run(arrays)
    for b, token in TOKENS.items():
        for name, value in VALUES if size == 1 else [("i", NAN), ("f", NAN), ("m", NAN)]:
            x = arrays[name].copy()
            x[(token if len(x) == BOUNDS[-1] else b, HEAD, *(n // 2 for n in x.shape[2:]))] = value
            tolerance = 1e-4 if np.isfinite(value) and framework.package.__name__ == "jax_impl" else 0.0
            found = assert_alone(run, arrays | {name: x}, clean, b, (name, value, b), tolerance)
            if value is NAN and name in "qkvif":
                assert np.isnan(found[0][token, HEAD]).any()


@pytest.mark.parametrize("of", PRODUCTS)
def test_products_beyond_the_dtype_stay_in_their_sequence_and_head(run, of):
    arrays = drawn(1.0)
    changed = {name: arrays[name].copy() for name in PRODUCTS[of]}
    for name, factor in PRODUCTS[of].items():
        changed[name][place(4, changed[name])] *= factor
    found = assert_alone(run, arrays | changed, run(arrays), 4, of)
    assert not all(np.isfinite(x).all() for x in found)
