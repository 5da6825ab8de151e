"""The sLSTM of the spec, against its unstabilised equations and central differences. Its laws are the suite's."""

import re

import numpy as np
import pytest

import reference
from reference import SLSTMState
from tests.reference.numeric import assert_gradient

NAMES = ("z", "i", "f", "o", "weight_z", "weight_i", "weight_f", "weight_o")
FORGET_GATES = ("sigmoid", "exp")


def inputs(rng, B=2, S=5, N=2, H=3, scale=1.0):
    tokens = [rng.normal(size=(B, S, N, H)) for _ in range(4)]
    return [*tokens, *(scale * rng.normal(size=(N, H, H)) / np.sqrt(H) for _ in range(4))]


def some_state(rng, B=2, N=2, H=3):
    c, n, m, h = rng.normal(size=(4, B, N, H))
    return SLSTMState(c, 0.5 + np.abs(n), m, h)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unstabilised(arrays, state, forget_gate):
    """One sequence and one head after the other, with the true memory: equations 8 to 14 of the paper."""
    z, i, f, o, *weights = arrays
    h_all = np.empty(z.shape)
    for b, N in np.ndindex(z.shape[0], z.shape[2]):
        c, n, h = np.zeros((3, z.shape[-1]))
        if state is not None:
            scale = np.exp(state.m[b, N])
            c, n, h = state.c[b, N] * scale, state.n[b, N] * scale, state.h[b, N]
        for t in range(z.shape[1]):
            u_z, u_i, u_f, u_o = (x[b, t, N] + h @ W[N] for x, W in zip((z, i, f, o), weights, strict=True))
            forget = np.exp(u_f) if forget_gate == "exp" else sigmoid(u_f)
            c = forget * c + np.exp(u_i) * np.tanh(u_z)
            n = forget * n + np.exp(u_i)
            h = h_all[b, t, N] = sigmoid(u_o) * c / n
    return h_all


@pytest.mark.parametrize("forget_gate", FORGET_GATES)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("S", [0, 1, 7])
def test_against_the_unstabilised_equations(S, with_state, forget_gate):
    rng = np.random.default_rng(S)
    arrays, state = inputs(rng, S=S), some_state(rng) if with_state else None
    h, last = reference.slstm(*arrays, initial_state=state, return_state=True, forget_gate=forget_gate)
    np.testing.assert_allclose(h, unstabilised(arrays, state, forget_gate), rtol=1e-12, atol=1e-14)
    if S:
        np.testing.assert_array_equal(last.h, h[:, -1])
    else:
        for part, given in zip(last, state or SLSTMState(0.0, 0.0, -np.inf, 0.0), strict=True):
            np.testing.assert_array_equal(part, np.broadcast_to(given, part.shape))


@pytest.mark.parametrize("forget_gate", FORGET_GATES)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_backward_against_central_differences(seed, with_state, forget_gate):
    rng = np.random.default_rng(seed)
    S = int(rng.integers(1, 7))
    arguments = dict(zip(NAMES, inputs(rng, S=S), strict=True))
    parts = some_state(rng)._asdict() if with_state else {}

    def flat(c=None, n=None, m=None, h=None, **arrays):
        state = None if c is None else SLSTMState(c, n, m, h)
        y, last = reference.slstm(**arrays, initial_state=state, return_state=True, forget_gate=forget_gate)
        return y, *last

    cotangents = [rng.normal(size=x.shape) for x in flat(**arguments, **parts)]
    gradients = reference.slstm_backward(
        **arguments,
        initial_state=SLSTMState(**parts) if parts else None,
        forget_gate=forget_gate,
        dh=cotangents[0],
        dstate=SLSTMState(*cotangents[1:]),
    )
    if with_state:
        gradients |= gradients.pop("initial_state")._asdict()
    assert_gradient(flat, {**arguments, **parts}, gradients, cotangents, rng)


@pytest.mark.parametrize("forget_gate", FORGET_GATES)
def test_a_hard_reset_hides_everything_before_it_but_h(forget_gate):
    """With f = −∞ the memory before the step has no weight; the recurrent weights still read the h before it."""
    rng = np.random.default_rng(4)
    arrays, state = inputs(rng, S=6, scale=0.0), some_state(rng)
    arrays[2][:, 3] = -np.inf
    h, last = reference.slstm(*arrays, initial_state=state, return_state=True, forget_gate=forget_gate)
    late = reference.slstm(*(x[:, 3:] for x in arrays[:4]), *arrays[4:], forget_gate=forget_gate)
    np.testing.assert_array_equal(h[:, 3:], late)
    dh, dlast = np.zeros(h.shape), SLSTMState(*rng.normal(size=(4, *state.c.shape)))
    dh[:, 3:] = rng.normal(size=dh[:, 3:].shape)
    gradients = reference.slstm_backward(*arrays, initial_state=state, forget_gate=forget_gate, dh=dh, dstate=dlast)
    for name in "zifo":
        np.testing.assert_array_equal(gradients[name][:, :3], 0.0)
    for part in gradients["initial_state"]:
        np.testing.assert_array_equal(part, 0.0)
    assert all(np.isfinite(gradients[name]).all() for name in NAMES) and np.isfinite(last.n).all()


@pytest.mark.parametrize("bound", [0.0, 0.05, -0.3, np.inf])
def test_clipping_is_that_of_the_gru(bound):
    """The gradient that reaches h_t from the next step is clipped before dy is added; those of c and n are not."""
    rng = np.random.default_rng(8)
    arrays, state = inputs(rng, S=4), some_state(rng)
    dh, dlast = rng.normal(size=arrays[0].shape), SLSTMState(*rng.normal(size=(4, *state.c.shape)))
    got = reference.slstm_backward(*arrays, initial_state=state, gradient_clipping=bound, dh=dh, dstate=dlast)
    states = [state]
    for t in range(4):
        states.append(reference.slstm_step(*(x[:, t] for x in arrays[:4]), *arrays[4:], states[-1])[1])
    carried = dlast
    for t in reversed(range(4)):
        reaching = np.clip(carried.h, -abs(bound), abs(bound))
        gradients = reference.slstm_step_backward(
            *(x[:, t] for x in arrays[:4]), *arrays[4:], states[t], dh=dh[:, t], dstate=carried._replace(h=reaching)
        )
        for name in "zifo":
            np.testing.assert_allclose(got[name][:, t], gradients[name], rtol=1e-9, atol=1e-12)
        carried = gradients["state"]
    np.testing.assert_allclose(got["initial_state"].h, carried.h, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("m", [1e15, 1e100, 1e300])
def test_gates_of_any_size_give_finite_results(m):
    rng = np.random.default_rng(9)
    arrays = inputs(rng, S=12)
    for number in (1, 2):
        arrays[number] = rng.choice([m, -m, 0.0, 0.5 * m, -3.0], size=arrays[number].shape)
    h, last = reference.slstm(*arrays, return_state=True)
    gradients = reference.slstm_backward(*arrays, dh=rng.normal(size=h.shape), dstate=last)
    assert np.isfinite(h).all() and np.abs(h).max() <= 1
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_bad_calls_name_the_argument():
    rng = np.random.default_rng(10)
    arrays, state = inputs(rng), some_state(rng)
    for said, bad, options in (
        ("`weight_f` is f64[2,3,4]; expected [N=2, H=3, H=3] to match `z`", {6: rng.normal(size=(2, 3, 4))}, {}),
        ("`forget_gate` is 'relu'; expected 'sigmoid' or 'exp'", {}, {"forget_gate": "relu"}),
        ("`initial_state` is a tuple of 3; expected a tuple (c, n, m, h)", {}, {"initial_state": tuple(state)[:3]}),
    ):
        with pytest.raises(ValueError, match=f"^slstm: {re.escape(said)}$"):
            reference.slstm(*(bad.get(number, x) for number, x in enumerate(arrays)), **options)
