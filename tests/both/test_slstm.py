"""sLSTM: values and gradients against the reference, packing, single steps, clipping, and at the edges."""

from functools import partial

import numpy as np
import pytest

import reference
from reference import SLSTMState
from tests.both.tools import compare

NAMES = ("z", "i", "f", "o", "weight_z", "weight_i", "weight_f", "weight_o")
PACKINGS = [[0, 0, 3, 20, 20, 31, 32], [0, 0, 5, 5, 10, 40, 40], [0, 40], [0, 1, 2, 3, 40]]


def call(seed, *tokens, N=2, H=3, B=2, with_state=True, scale=1.0):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(*tokens, N, H)) for _ in range(4)]
    arrays += [scale * rng.normal(size=(N, H, H)) / np.sqrt(max(H, 1)) for _ in range(4)]
    if with_state:
        c, n, m, h = rng.normal(size=(4, B, N, H))
        arrays += [np.tanh(c), 0.5 + np.abs(n), m, np.tanh(h)]
    return arrays


def slstm_reference(arrays, cotangents=None, **options):
    state = SLSTMState(*arrays[8:]) if len(arrays) > 8 else None
    if cotangents is None:
        options.pop("gradient_clipping", None)
        h, last = reference.slstm(*arrays[:8], initial_state=state, return_state=True, **options)
        return [h, *last]
    dstate = SLSTMState(*cotangents[1:])
    found = reference.slstm_backward(*arrays[:8], initial_state=state, dh=cotangents[0], dstate=dstate, **options)
    return [*(found[name] for name in NAMES), *(found["initial_state"] if state else ())]


def slstm(framework, **options):
    def function(*arrays):
        state = SLSTMState(*arrays[8:]) if len(arrays) > 8 else None
        h, last = framework.package.slstm(*arrays[:8], initial_state=state, return_state=True, **options)
        return [h, *last]

    return function


def against_reference(framework, arrays, *rest, packing=None, **options):
    given, exact = dict(options), dict(options)
    if packing is not None:
        given["cu_seqlens"], exact["cu_seqlens"] = framework.array(packing, "int32"), packing
    return compare(framework, slstm(framework, **given), partial(slstm_reference, **exact), arrays, *rest)


@pytest.mark.grid
@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "empty"])
@pytest.mark.parametrize("S", [0, 1, 5, 65])
def test_gradients(framework, S, with_state, dtype, forget_gate):
    against_reference(framework, call(S, 2, S, with_state=with_state), dtype, forget_gate=forget_gate)


@pytest.mark.grid
@pytest.mark.parametrize("clipping", [0.3, -0.05, 0.0])
@pytest.mark.parametrize("S", [1, 9])
def test_clipping(framework, clipping, S):
    _, clipped = against_reference(framework, call(1, 2, S), gradient_clipping=clipping)
    _, whole = against_reference(framework, call(1, 2, S))
    assert not np.allclose(clipped[0], whole[0])


@pytest.mark.grid
@pytest.mark.parametrize("clipping", [None, 0.1])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "empty"])
@pytest.mark.parametrize("bounds", PACKINGS, ids=str)
def test_packed_is_each_sequence_by_itself(framework, bounds, with_state, clipping):
    arrays = call(3, bounds[-1], B=len(bounds) - 1, with_state=with_state)
    against_reference(framework, arrays, packing=np.array(bounds, np.int32), gradient_clipping=clipping)


@pytest.mark.grid
@pytest.mark.parametrize("sizes", [{"N": 0}, {"H": 0}, {"H": 1, "N": 1}], ids=str)
@pytest.mark.parametrize(
    ("tokens", "bounds"),
    [((2, 3), None), ((2, 0), None), ((0, 3), None), ((0,), [0]), ((0,), [0, 0]), ((4,), [0, 0, 4])],
)
def test_sizes_of_0(framework, tokens, bounds, sizes):
    arrays = call(5, *tokens, B=tokens[0] if bounds is None else len(bounds) - 1, **sizes)
    packing = None if bounds is None else np.array(bounds, np.int32)
    against_reference(framework, arrays, "float32", 1e-5, packing=packing)


@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
def test_infinite_and_large_gates(framework, forget_gate):
    """Hard resets, silent steps and states without a memory, among gates of 1e4."""
    arrays, rng = call(6, 2, 17), np.random.default_rng(6)
    arrays[1] = rng.choice([-np.inf, 1e4, -1e4, 0.0, 3.0], size=arrays[1].shape)
    arrays[2] = rng.choice([-np.inf, -1e4, 0.0, 3.0, 1e4 if forget_gate == "exp" else np.inf], size=arrays[2].shape)
    arrays[10][rng.random(arrays[10].shape) < 0.3] = -np.inf
    against_reference(framework, arrays, "float64", 1e-9, forget_gate=forget_gate)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_values_around_float32_states(framework, dtype):
    tolerance = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    dtypes = [dtype] * 8 + ["float32"] * 4
    against_reference(framework, call(7, 2, 33, scale=0.4), dtypes, 1.2 * tolerance)


def test_steps_are_the_sequence(framework):
    """`slstm_step` applied again and again is `slstm`, bit for bit but for the order of sums."""
    arrays = call(8, 2, 7)

    def stepwise(*x):
        state, h = SLSTMState(*x[8:]), []
        for t in range(7):
            y, state = framework.package.slstm_step(*(part[:, t] for part in x[:4]), *x[4:8], state)
            h.append(y)
        return [framework.stack(h, 1), *state]

    compare(framework, stepwise, slstm_reference, arrays)


def test_the_gates_decide_for_one_sequence_alone(framework):
    """A sequence that has written nothing yet changes nothing in the others of its batch."""
    arrays = call(9, 3, 5, with_state=False)
    arrays[1][0] = -np.inf
    (h, *_), _ = against_reference(framework, arrays)
    (alone, *_), _ = against_reference(framework, [*(x[1:] for x in arrays[:4]), *arrays[4:]])
    np.testing.assert_allclose(h[1:], alone, rtol=1e-12, atol=1e-14)
    assert not h[0].any()
