"""GRU: values and gradients against the reference, grouped heads, clipping, packing, and at the edges."""

from functools import partial

import numpy as np
import pytest

from tests.both.tools import compare, gru, gru_inputs, gru_reference, relative_error, rounded

ONE = (1,) * 6
GROUPED = (6, 1, 2, 3, 1, 6)
HEADS = [ONE, GROUPED, (1, 2, 4, 4, 2, 1), (3, 1, 3, 1, 3, 1), (3,) * 6, (2, 1, 2, 1, 4, 2), (1, 1, 1, 1, 1, 5)]
PACKINGS = [[0, 0, 3, 20, 20, 31, 32], [0, 0, 5, 5, 10, 40, 40], [0, 40], [0, 1, 2, 3, 40]]


def call(seed, *tokens, heads=GROUPED, H=5, B=2, with_state=True, scale=1.0):
    rng = np.random.default_rng(seed)
    state = [rng.normal(size=(B, max(heads), H))] if with_state else []
    return [*gru_inputs(rng, *tokens, heads=heads, H=H, scale=scale), *state]


def against_reference(framework, arrays, *rest, sizes=None, **options):
    return compare(framework, gru(framework, **options), partial(gru_reference, **options), arrays, *rest, sizes=sizes)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("S", [0, 1, 5, 63, 64, 65, 200])
def test_gradients(framework, S, with_state, dtype):
    against_reference(framework, call(S, 2, S, with_state=with_state), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradients_of_a_wide_head(framework, dtype):
    """So many multiplications that oneDNN does them in PyTorch, and each gate has a product of its own in JAX."""
    arrays = call(8, 16, 2, heads=ONE, H=256, B=16, scale=256**-0.5)
    against_reference(framework, arrays, dtype, gradient_clipping=2.0)


@pytest.mark.grid
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("clipping", [None, 0.3])
def test_every_count_of_heads(framework, heads, clipping):
    against_reference(framework, call(0, 2, 9, heads=heads), gradient_clipping=clipping)


@pytest.mark.grid
@pytest.mark.parametrize("S", [0, 1, 9, 65])
@pytest.mark.parametrize("clipping", [0.3, -0.05, 0.0, 1e9])
def test_clipping(framework, clipping, S):
    """65 steps are no whole number of blocks: what fills the last one clips nothing."""
    arrays = call(1, 2, S, scale=0.4)
    _, got = against_reference(framework, arrays, sizes=[10.0, 10.0], gradient_clipping=clipping)
    _, unclipped = against_reference(framework, arrays, sizes=[10.0, 10.0])
    assert np.allclose(got[1], unclipped[1]) == (S == 0 or abs(clipping) > 1)


@pytest.mark.grid
@pytest.mark.parametrize("clipping", [None, 0.1])
@pytest.mark.parametrize("heads", [ONE, GROUPED], ids=str)
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("bounds", PACKINGS, ids=str)
def test_packed_is_each_sequence_by_itself(framework, bounds, with_state, heads, clipping):
    arrays = call(3, bounds[-1], heads=heads, B=len(bounds) - 1, with_state=with_state)
    packing = np.array(bounds, np.int32)
    packed = gru(framework, gradient_clipping=clipping, cu_seqlens=framework.array(packing, "int32"))
    compare(framework, packed, partial(gru_reference, gradient_clipping=clipping, cu_seqlens=packing), arrays)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("tokens", "bounds"), [((2, 0), None), ((0, 3), None), ((0, 0), None), ((0,), [0]), ((0,), [0, 0]), ((0,), [0] * 3)]
)
def test_nothing_to_do_returns_the_initial_state(framework, tokens, bounds):
    arrays = call(5, *tokens, B=tokens[0] if bounds is None else len(bounds) - 1)
    options = {} if bounds is None else {"cu_seqlens": np.array(bounds, np.int32)}
    given = {name: framework.array(x, "int32") for name, x in options.items()}
    function = gru(framework, gradient_clipping=0.1, **given)
    compare(framework, function, partial(gru_reference, gradient_clipping=0.1, **options), arrays, "float32", 1e-6)


def test_saturated_gates(framework):
    arrays = call(6, 2, 9)
    rng = np.random.default_rng(6)
    for at in (0, 2, 4):
        kinds = rng.integers(0, 6, size=arrays[at].shape)
        for kind, value in enumerate([np.inf, -np.inf, 1e4, -1e4]):
            arrays[at][kinds == kind] = value
    compare(framework, gru(framework), gru_reference, arrays, "float32", scale=1.0)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_values_around_a_float32_state(framework, dtype):
    """No rounding inside the loop: the outputs are as exact as one rounding allows, the state as float32 does."""
    arrays, dtypes = call(7, 2, 65, scale=0.4), [dtype] * 6 + ["float32"]
    tolerance = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    outputs, _ = compare(framework, gru(framework), gru_reference, arrays, dtypes, 1.2 * tolerance)
    exact = gru_reference([rounded(x, name) for x, name in zip(arrays, dtypes, strict=True)])
    assert relative_error(outputs[1], exact[1]) < 1e-5
