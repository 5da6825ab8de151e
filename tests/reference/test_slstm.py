"""The sLSTM of the spec, against its unstabilised equations, central differences and its own invariances."""

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


def test_a_step_is_a_sequence_of_one():
    rng = np.random.default_rng(1)
    arrays, state = inputs(rng, S=1), some_state(rng)
    step = [x[:, 0] for x in arrays[:4]] + arrays[4:]
    h, after = reference.slstm_step(*step, state)
    whole, last = reference.slstm(*arrays, initial_state=state, return_state=True)
    np.testing.assert_array_equal(h, whole[:, 0])
    for part, of_whole in zip(after, last, strict=True):
        np.testing.assert_array_equal(part, of_whole)
    dh, dstate = rng.normal(size=h.shape), SLSTMState(*rng.normal(size=(4, *h.shape)))
    gradients = reference.slstm_step_backward(*step, state, dh=dh, dstate=dstate)
    of_whole = reference.slstm_backward(*arrays, initial_state=state, dh=dh[:, None], dstate=dstate)
    np.testing.assert_array_equal(gradients["f"], of_whole["f"][:, 0])
    np.testing.assert_array_equal(gradients["weight_i"], of_whole["weight_i"])
    np.testing.assert_array_equal(gradients["state"].m, of_whole["initial_state"].m)


@pytest.mark.parametrize("forget_gate", FORGET_GATES)
@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_split_and_carry(cut, forget_gate):
    """Values and gradients of a sequence that is cut in two and whose state is carried are those of the whole."""
    rng = np.random.default_rng(cut)
    arrays, state = inputs(rng, S=7), some_state(rng)
    dh, dlast = rng.normal(size=arrays[0].shape), SLSTMState(*rng.normal(size=(4, *state.c.shape)))
    options = {"forget_gate": forget_gate, "gradient_clipping": 0.3}
    early, late = ([*(x[:, part] for x in arrays[:4]), *arrays[4:]] for part in (slice(cut), slice(cut, None)))
    h, last = reference.slstm(*arrays, initial_state=state, return_state=True, forget_gate=forget_gate)
    h_early, between = reference.slstm(*early, initial_state=state, return_state=True, forget_gate=forget_gate)
    h_late, last_late = reference.slstm(*late, initial_state=between, return_state=True, forget_gate=forget_gate)
    np.testing.assert_array_equal(np.concatenate([h_early, h_late], 1), h)
    np.testing.assert_array_equal(last_late, last)
    whole = reference.slstm_backward(*arrays, initial_state=state, dh=dh, dstate=dlast, **options)
    of_late = reference.slstm_backward(*late, initial_state=between, dh=dh[:, cut:], dstate=dlast, **options)
    dbetween = of_late["initial_state"]
    of_early = reference.slstm_backward(*early, initial_state=state, dh=dh[:, :cut], dstate=dbetween, **options)
    for name in NAMES:
        joined = (
            of_early[name] + of_late[name]
            if name.startswith("weight")
            else np.concatenate([of_early[name], of_late[name]], 1)
        )
        np.testing.assert_allclose(joined, whole[name], rtol=1e-9, atol=1e-12)
    for part, of_whole in zip(of_early["initial_state"], whole["initial_state"], strict=True):
        np.testing.assert_allclose(part, of_whole, rtol=1e-9, atol=1e-12)


def test_packed_sequences_are_computed_one_by_one():
    rng = np.random.default_rng(2)
    cu_seqlens = np.array([0, 3, 3, 4, 9])
    tokens, weights = [rng.normal(size=(9, 2, 3)) for _ in range(4)], inputs(rng)[4:]
    state, dh = some_state(rng, B=4), rng.normal(size=(9, 2, 3))
    dlast = SLSTMState(*rng.normal(size=(4, 4, 2, 3)))
    h, last = reference.slstm(*tokens, *weights, initial_state=state, return_state=True, cu_seqlens=cu_seqlens)
    gradients = reference.slstm_backward(
        *tokens, *weights, initial_state=state, cu_seqlens=cu_seqlens, dh=dh, dstate=dlast
    )
    summed = dict.fromkeys(NAMES[4:], 0.0)
    for b in range(4):
        part = slice(cu_seqlens[b], cu_seqlens[b + 1])
        alone = [x[None, part] for x in tokens]
        of_b, d_b = (SLSTMState(*(x[b : b + 1] for x in each)) for each in (state, dlast))
        h_b, last_b = reference.slstm(*alone, *weights, initial_state=of_b, return_state=True)
        np.testing.assert_array_equal(h[part], h_b[0])
        for x, x_b in zip(last, last_b, strict=True):
            np.testing.assert_array_equal(x[b], x_b[0])
        of_alone = reference.slstm_backward(*alone, *weights, initial_state=of_b, dh=dh[None, part], dstate=d_b)
        np.testing.assert_array_equal(gradients["i"][part], of_alone["i"][0])
        for name in summed:
            summed[name] = summed[name] + of_alone[name]
    for name, total in summed.items():
        np.testing.assert_allclose(gradients[name], total, rtol=1e-12, atol=1e-14)


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


def test_silent_steps_write_nothing():
    rng = np.random.default_rng(5)
    arrays = inputs(rng, S=4)
    arrays[1][:, :2] = -np.inf
    h, last = reference.slstm(*arrays, return_state=True)
    np.testing.assert_array_equal(h[:, :2], 0.0)
    assert np.isfinite(h).all() and np.isfinite(np.stack(last)).all()
    # The first write decides alone: h = σ(u_o) tanh(u_z), whatever the size of its gate.
    first = sigmoid(arrays[3][:, 2]) * np.tanh(arrays[0][:, 2])
    np.testing.assert_allclose(h[:, 2], first, rtol=1e-13)
    arrays[1][:] = -np.inf
    h, last = reference.slstm(*arrays, return_state=True)
    np.testing.assert_array_equal(h, 0.0)
    np.testing.assert_array_equal(last.m, -np.inf)
    gradients = reference.slstm_backward(
        *arrays, dh=rng.normal(size=h.shape), dstate=SLSTMState(*rng.normal(size=(4, 2, 2, 3)))
    )
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_sequences_do_not_depend_on_each_other():
    """A sequence that has written nothing yet leaves the others of its batch unchanged."""
    rng = np.random.default_rng(6)
    arrays = inputs(rng, B=3, S=5)
    arrays[1][0] = -np.inf
    h = reference.slstm(*arrays)
    alone = reference.slstm(*(x[1:] for x in arrays[:4]), *arrays[4:])
    np.testing.assert_array_equal(h[1:], alone)


@pytest.mark.parametrize("shift", [-300.0, 7.0, 2.0**20])
def test_the_stabiliser_only_keeps_numbers_in_range(shift):
    """Adding a number to all input gates and to the initial m adds it to m and changes nothing else."""
    rng = np.random.default_rng(7)
    arrays, state = inputs(rng, S=9, scale=0.0), some_state(rng)
    arrays[1] = np.round(arrays[1] * 2**10) / 2**10
    state = state._replace(m=np.round(state.m * 2**10) / 2**10)
    h, last = reference.slstm(*arrays, initial_state=state, return_state=True)
    arrays[1] = arrays[1] + shift
    moved, last_moved = reference.slstm(*arrays, initial_state=state._replace(m=state.m + shift), return_state=True)
    np.testing.assert_allclose(moved, h, rtol=1e-12)
    np.testing.assert_allclose(last_moved.m, last.m + shift, rtol=1e-12)


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
