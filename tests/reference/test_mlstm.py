"""The mLSTM of the spec: its value and its backward are exact, its extremes are defined. Its laws are the suite's."""

import numpy as np
import pytest

import reference
from reference import MLSTMState
from tests.reference.numeric import assert_gradient, mlstm_with_given_m, stabiliser


def inputs(rng, B=2, S=9, N=3, K=5, V=4, gate_scale=2.0, m_scale=1.0):
    q, k = rng.normal(size=(2, B, S, N, K))
    v = rng.normal(size=(B, S, N, V))
    i, f = gate_scale * rng.normal(size=(2, B, S, N))
    state = MLSTMState(rng.normal(size=(B, N, K, V)), rng.normal(size=(B, N, K)), m_scale * rng.normal(size=(B, N)))
    return (q, k, v, i, f), state


def test_against_equations_written_with_given_m():
    arrays, state = inputs(np.random.default_rng(0), S=40)
    m = stabiliser(arrays[3], arrays[4], state.m)
    h, C, n = mlstm_with_given_m(*arrays, *state, m)
    got, last = reference.mlstm(*arrays, initial_state=state, return_state=True)
    np.testing.assert_allclose(got, h, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.C, C, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.n, n, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.m, m[:, -1], rtol=1e-14)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_state", [False, True])
def test_backward_against_central_differences(seed, with_state):
    rng = np.random.default_rng(seed)
    B, S, N, K, V = rng.integers(1, [3, 14, 3, 6, 6])
    arrays, state = inputs(rng, B, S, N, K, V)
    arguments = dict(zip("qkvif", arrays, strict=True))
    if with_state:
        arguments.update(zip("Cnm", state, strict=True))

    def operation(q, k, v, i, f, C=None, n=None, m=None):
        initial = None if C is None else MLSTMState(C, n, m)
        h, last = reference.mlstm(q, k, v, i, f, initial_state=initial, return_state=True)
        return (h, *last)

    cotangents = [rng.normal(size=x.shape) for x in operation(**arguments)]
    gradients = reference.mlstm_backward(
        *arrays, initial_state=state if with_state else None, dh=cotangents[0], dstate=MLSTMState(*cotangents[1:])
    )
    if with_state:
        gradients.update(zip("Cnm", gradients.pop("initial_state"), strict=True))
    assert_gradient(operation, arguments, gradients, cotangents, rng)


@pytest.mark.parametrize(("shift", "eps"), [(0.0, 0.3), (70.0, 0.0), (66.0, 1e-29)])
def test_exceptions_freeze_m_at_its_value(shift, eps):
    """m inside `eps`, and inside the floor above 64, is a constant."""
    rng = np.random.default_rng(5)
    (q, k, v, i, f), state = inputs(rng, S=11)
    q = q * (1e-28 if shift else 1.0)
    i, state = i + shift, state._replace(m=state.m + shift)
    m = stabiliser(i, f, state.m)
    if shift:
        assert (m > 64).all()
    arguments = dict(q=q, k=k, v=v, i=i, f=f, C=state.C, n=state.n, m_0=state.m)

    def frozen(q, k, v, i, f, C, n, m_0):
        return mlstm_with_given_m(q, k, v, i, f, C, n, m_0, m, eps)[:1]

    dh = rng.normal(size=v.shape)
    got = reference.mlstm_backward(q, k, v, i, f, initial_state=state, dh=dh, eps=eps)
    dC, dn, dm = got.pop("initial_state")
    q_unit = {"q": got.pop("q")}
    gradients = {**q_unit, **got, "C": dC, "n": dn, "m_0": dm}
    if shift:
        scale = 1e28
        arguments["q"], gradients["q"] = arguments["q"] * scale, gradients["q"] / scale
        original = frozen
        frozen = lambda q, **rest: original(q=q / scale, **rest)  # noqa: E731
    assert_gradient(frozen, arguments, gradients, [dh], rng)


def test_gradient_of_m_follows_what_attains_it():
    (q, k, v, i, f), state = inputs(np.random.default_rng(3), B=1, S=6, N=3)
    i = np.full_like(i, -3.0)
    f = np.full_like(f, 1.0)
    i[0, 2, 0] = 5.0
    state = state._replace(m=np.array([[0.0, 9.0, 0.0]]), C=state.C * 0, n=state.n * 0)
    i[0, 5, 2] = 2.0
    zeros = MLSTMState(np.zeros_like(state.C), np.zeros_like(state.n), np.ones((1, 3)))
    g = reference.mlstm_backward(q, k, v, i, f, initial_state=state, dh=np.zeros_like(v), dstate=zeros)
    sigma = 1 / (1 + np.exp(1.0))
    np.testing.assert_array_equal(g["i"][0, :, 0], [0, 0, 1, 0, 0, 0])
    np.testing.assert_allclose(g["f"][0, :, 0], [0, 0, 0, sigma, sigma, sigma], rtol=1e-14)
    np.testing.assert_array_equal(g["initial_state"].m[0], [0, 1, 0])
    np.testing.assert_allclose(g["f"][0, :, 1], np.full(6, sigma), rtol=1e-14)
    np.testing.assert_array_equal(g["i"][0, :, 2], [0, 0, 0, 0, 0, 1])


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_extreme_gates(chunk_size):
    rng = np.random.default_rng(4)
    (q, k, v, i, f), state = inputs(rng, B=1, S=16, N=8)
    i[..., 0], f[..., 0] = -np.inf, -np.inf
    f[..., 1] = np.inf
    f[0, 5, 2] = -np.inf
    i[..., 3] = -np.inf
    i[..., 4] *= 1e4
    f[..., 5] *= 1e4
    i[..., 6] = -1e4
    f[..., 6] = -1e4
    state.m[0, 7] = -np.inf
    with np.errstate(invalid="raise", divide="raise"):
        h, last = reference.mlstm(q, k, v, i, f, initial_state=state, return_state=True, chunk_size=chunk_size)
        dlast = MLSTMState(*(rng.normal(size=part.shape) for part in last))
        grads = reference.mlstm_backward(q, k, v, i, f, initial_state=state, dh=rng.normal(size=h.shape), dstate=dlast)
    dinitial = grads.pop("initial_state")
    for x in (h, last.C, last.n, *grads.values(), *dinitial):
        assert np.isfinite(x).all()
    assert (h[..., 0, :] == 0).all()
    assert (last.m[:, 0] == -np.inf).all()
    assert not last.C[:, 0].any()
    assert not last.n[:, 0].any()
    alone = reference.mlstm(*(x[:, 5:, 2:3] for x in (q, k, v, i, f)))
    np.testing.assert_allclose(h[:, 5:, 2:3], alone, rtol=1e-12, atol=1e-13)
    assert (grads["f"][0, 5, 2] == 0).all()
    assert not h[..., 6, :].any()
