"""The GRU of the spec, against an independently written step and central differences."""

import itertools
from functools import partial

import numpy as np
import pytest

import reference
from tests.reference.numeric import assert_gradient

NAMES = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight")


def inputs(rng, B=2, S=5, H=3, heads=(2, 2, 2, 2, 2, 2), scale=1.0):
    """Heads in the order of the arguments: Nx, Nw, Nxf, Nwf, Nxr, Nwr."""
    shapes = [(B, S, n, H) if name.endswith("input") else (n, H, H) for name, n in zip(NAMES, heads, strict=True)]
    return [scale * rng.normal(size=shape) for shape in shapes]


def one_step(h, x, W, xf, Wf, xr, Wr, b=None):
    """One step of one head, ``h (H,)``, written from the equations; ``b`` is the bias of the form that has one."""
    r = 1 / (1 + np.exp(-(h @ Wr + xr)))
    f = 1 / (1 + np.exp(-(h @ Wf + xf)))
    product = (r * h) @ W if b is None else r * (h @ W + b)
    return f * h + (1 - f) * np.tanh(product + x)


after = pytest.mark.parametrize("after", [False, True], ids=["reset before", "reset after"])


@after
@pytest.mark.parametrize("heads", [(1, 1, 1, 1, 1, 1), (4, 2, 1, 4, 2, 1), (1, 6, 3, 2, 6, 1), (2, 1, 4, 1, 1, 2)])
def test_against_one_head_at_a_time(heads, after):
    rng = np.random.default_rng(0)
    arrays, N = inputs(rng, heads=heads), max(heads)
    state = rng.normal(size=(2, N, 3))
    options = {"reset_after": True, "recurrent_bias": rng.normal(size=(heads[1], 3))} if after else {}
    y, last = reference.gru(*arrays, state, **options)
    x, W, xf, Wf, xr, Wr = arrays
    for b, n in itertools.product(range(2), range(N)):
        h = state[b, n]
        at = [n // (N // count) for count in heads]
        for t in range(5):
            bias = options["recurrent_bias"][at[1]] if after else None
            h = one_step(h, x[b, t, at[0]], W[at[1]], xf[b, t, at[2]], Wf[at[3]], xr[b, t, at[4]], Wr[at[5]], bias)
            # An element may be the small difference of terms of about 1, rounded at 1e-16 whatever is left of them.
            np.testing.assert_allclose(y[b, t, n], h, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(last[b, n], h, rtol=1e-13, atol=1e-15)


@after
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_state", [False, True])
def test_backward_against_central_differences(seed, with_state, after):
    rng = np.random.default_rng(seed)
    heads = [(1,) * 6, (2, 1, 4, 4, 2, 1), (3, 1, 1, 3, 1, 1), (1, 2, 1, 2, 1, 2), (4, 2, 1, 1, 2, 4), (2,) * 6][seed]
    arguments = dict(zip(NAMES, inputs(rng, S=int(rng.integers(1, 7)), heads=heads), strict=True))
    if with_state:
        arguments["input_state"] = rng.normal(size=(2, max(heads), 3))
    if after:
        arguments["recurrent_bias"] = rng.normal(size=arguments["weight"].shape[:2])
    call, backward = (partial(function, reset_after=after) for function in (reference.gru, reference.gru_backward))
    cotangents = [rng.normal(size=x.shape) for x in call(**arguments)]
    gradients = backward(**arguments, dy=cotangents[0], dstate=cotangents[1])
    assert_gradient(call, arguments, gradients, cotangents, rng)


@pytest.mark.parametrize("bound", [0.0, 0.05, -0.3, np.inf])
def test_clipping_against_a_written_out_loop(bound):
    """Each step's Jacobian by central differences; the carry clipped before dy is added, not for the initial state."""
    rng = np.random.default_rng(3)
    B, S, H = 2, 6, 3
    arrays = inputs(rng, B, S, H, heads=(1,) * 6)
    state, dy, dstate = rng.normal(size=(B, 1, H)), rng.normal(size=(B, S, 1, H)), rng.normal(size=(B, 1, H))
    y, _ = reference.gru(*arrays, state)
    got = reference.gru_backward(*arrays, state, bound, dy=dy, dstate=dstate)
    x, W, xf, Wf, xr, Wr = arrays
    expected = {name: np.zeros(array.shape) for name, array in zip(NAMES, arrays, strict=True)}
    expected["input_state"] = np.zeros(state.shape)
    for b in range(B):
        dh = dstate[b, 0]
        for t in reversed(range(S)):
            dh = np.clip(dh, -abs(bound), abs(bound)) + dy[b, t, 0]
            h = y[b, t - 1, 0] if t else state[b, 0]
            at = [h, x[b, t, 0], W[0], xf[b, t, 0], Wf[0], xr[b, t, 0], Wr[0]]
            into = ["h", *NAMES]
            for number, name in enumerate(into):
                jacobian = np.zeros(at[number].shape)
                for index in np.ndindex(jacobian.shape):
                    moved = [x.copy() for x in at]
                    moved[number][index] += 1e-5
                    up = one_step(*moved)
                    moved[number][index] -= 2e-5
                    jacobian[index] = dh @ (up - one_step(*moved)) / 2e-5
                if name == "h":
                    through = jacobian
                elif name.endswith("input"):
                    expected[name][b, t, 0] = jacobian
                else:
                    expected[name][0] += jacobian
            dh = through
        expected["input_state"][b, 0] = dh
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 5, 1, 0)])
def test_packed_is_each_sequence_alone(lengths):
    rng = np.random.default_rng(4)
    B, T = len(lengths), sum(lengths)
    x, W, xf, Wf, xr, Wr = inputs(rng, 1, T, heads=(2, 1, 4, 2, 1, 4))
    packed = [x[0], W, xf[0], Wf, xr[0], Wr]
    state = rng.normal(size=(B, 4, 3))
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    y, last = reference.gru(*packed, state, 0.1, cu, max(lengths, default=0))
    dy, dstate = rng.normal(size=y.shape), rng.normal(size=last.shape)
    grads = reference.gru_backward(*packed, state, 0.1, cu, dy=dy, dstate=dstate)
    sums = {name: np.zeros_like(grads[name]) for name in NAMES if name.endswith("weight")}
    for b in range(B):
        one = np.s_[None, cu[b] : cu[b + 1]]
        alone = [packed[0][one], W, packed[2][one], Wf, packed[4][one], Wr]
        its_y, its_last = reference.gru(*alone, state[b : b + 1])
        np.testing.assert_array_equal(y[one], its_y)
        np.testing.assert_array_equal(last[b], its_last[0])
        its = reference.gru_backward(*alone, state[b : b + 1], 0.1, dy=dy[one], dstate=dstate[b : b + 1])
        for name in ("input", "forget_input", "reset_input"):
            np.testing.assert_array_equal(grads[name][one], its[name])
        np.testing.assert_array_equal(grads["input_state"][b], its["input_state"][0])
        for name in sums:
            sums[name] += its[name]
    for name, total in sums.items():
        np.testing.assert_allclose(grads[name], total, rtol=1e-12, atol=1e-14)


def test_saturated_gates():
    rng = np.random.default_rng(5)
    x, W, xf, Wf, xr, Wr = inputs(rng, heads=(1,) * 6)
    state = rng.normal(size=(2, 1, 3))
    kept, last = reference.gru(x, W, np.full_like(xf, np.inf), Wf, xr, Wr, state)
    np.testing.assert_array_equal(last, state)
    np.testing.assert_array_equal(kept, np.broadcast_to(state[:, None], kept.shape))
    fresh, _ = reference.gru(x, W, np.full_like(xf, -np.inf), Wf, np.full_like(xr, -np.inf), Wr, state)
    np.testing.assert_allclose(fresh, np.tanh(x), rtol=1e-14)
    grads = reference.gru_backward(
        x, W, np.full_like(xf, -1e4), Wf, np.full_like(xr, 1e4), Wr, state, dy=np.ones_like(kept), dstate=state
    )
    assert all(np.isfinite(gradient).all() for gradient in grads.values())
