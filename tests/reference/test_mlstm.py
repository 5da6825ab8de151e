"""The mLSTM of the spec: its forms agree, its backward is exact, its extremes are defined."""

import numpy as np
import pytest

import reference
from reference import MLSTMState
from tests.large_gates import HUGE, huge
from tests.reference.numeric import assert_gradient, mlstm_with_given_m, stabiliser

FORMS = {
    "recurrent": reference.mlstm_recurrent,
    "parallel": reference.mlstm_parallel,
    "chunk of 1": lambda *x, **kw: reference.mlstm_chunkwise(*x, chunk_size=1, **kw),
    "chunk of 7": lambda *x, **kw: reference.mlstm_chunkwise(*x, chunk_size=7, **kw),
    "chunk of 64": lambda *x, **kw: reference.mlstm_chunkwise(*x, chunk_size=64, **kw),
}


def inputs(rng, B=2, S=9, N=3, K=5, V=4, gate_scale=2.0, m_scale=1.0):
    q, k = rng.normal(size=(2, B, S, N, K))
    v = rng.normal(size=(B, S, N, V))
    i, f = gate_scale * rng.normal(size=(2, B, S, N))
    state = MLSTMState(rng.normal(size=(B, N, K, V)), rng.normal(size=(B, N, K)), m_scale * rng.normal(size=(B, N)))
    return (q, k, v, i, f), state


@pytest.mark.parametrize("S", [0, 1, 5, 63, 64, 65, 130])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_state", [False, True])
def test_forms_agree(form, S, with_state):
    arrays, state = inputs(np.random.default_rng(S), S=S)
    state = state if with_state else None
    expected = reference.mlstm_recurrent(*arrays, initial_state=state, eps=0.25)
    got = FORMS[form](*arrays, initial_state=state, eps=0.25)
    for one, other in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_against_equations_written_with_given_m():
    arrays, state = inputs(np.random.default_rng(0), S=40)
    m = stabiliser(arrays[3], arrays[4], state.m)
    h, C, n = mlstm_with_given_m(*arrays, *state, m)
    got, last = reference.mlstm(*arrays, initial_state=state, return_state=True)
    np.testing.assert_allclose(got, h, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.C, C, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.n, n, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.m, m[:, -1], rtol=1e-14)


@pytest.mark.parametrize("seed", range(12))
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


def test_closed_forms_of_the_gate_gradients():
    """di_t = k·dk + g[t=j], d log σ(f_t) = Σ_{s≥t}(q·dq − k·dk)_s + c + g[t>j], dm₀ = ⟨C₀,dC₀⟩ + ⟨n₀,dn₀⟩ + g[j=0]."""
    rng = np.random.default_rng(8)
    (q, k, v, i, f), state = inputs(rng, S=30)
    h, last = reference.mlstm(q, k, v, i, f, initial_state=state, return_state=True)
    dstate = MLSTMState(*(rng.normal(size=part.shape) for part in last))
    grads = reference.mlstm_backward(q, k, v, i, f, initial_state=state, dh=rng.normal(size=h.shape), dstate=dstate)
    c = (last.C * dstate.C).sum((-2, -1)) + (last.n * dstate.n).sum(-1)
    g = dstate.m - c
    m = stabiliser(i, f, state.m)
    before = np.concatenate([state.m[:, None], m[:, :-1]], axis=1)
    writes = i > before - np.logaddexp(0, -f)
    steps = np.arange(1, 31)[None, :, None]
    j = np.where(writes, steps, 0).max(axis=1, keepdims=True)
    kdk, qdq = (k * grads["k"]).sum(-1), (q * grads["q"]).sum(-1)
    da = np.flip(np.flip(qdq - kdk, 1).cumsum(1), 1) + c[:, None] + g[:, None] * (steps > j)
    np.testing.assert_allclose(grads["i"], kdk + g[:, None] * (steps == j), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(grads["f"], da / (1 + np.exp(f)), rtol=1e-9, atol=1e-11)
    dC, dn, dm = grads["initial_state"]
    inner = (state.C * dC).sum((-2, -1)) + (state.n * dn).sum(-1)
    np.testing.assert_allclose(dm, inner + g * (j[:, 0] == 0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cut", [0, 1, 7, 19, 20])
def test_split_and_carry(cut):
    rng = np.random.default_rng(cut)
    arrays, state = inputs(rng, S=20)
    h, last = reference.mlstm(*arrays, initial_state=state, return_state=True)
    first = reference.mlstm(*(x[:, :cut] for x in arrays), initial_state=state, return_state=True)
    second = reference.mlstm(*(x[:, cut:] for x in arrays), initial_state=first[1], return_state=True)
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]], axis=1), h)
    dh, dlast = rng.normal(size=h.shape), MLSTMState(*(rng.normal(size=part.shape) for part in last))
    whole = reference.mlstm_backward(*arrays, initial_state=state, dh=dh, dstate=dlast)
    late = reference.mlstm_backward(*(x[:, cut:] for x in arrays), initial_state=first[1], dh=dh[:, cut:], dstate=dlast)
    early = reference.mlstm_backward(
        *(x[:, :cut] for x in arrays), initial_state=state, dh=dh[:, :cut], dstate=late["initial_state"]
    )
    for name in "qkvif":
        joined = np.concatenate([early[name], late[name]], axis=1)
        np.testing.assert_allclose(joined, whole[name], rtol=1e-10, atol=1e-12)
    for one, other in zip(early["initial_state"], whole["initial_state"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("lengths", [(), (0,), (5, 0, 3, 1, 0), (9,)])
def test_packed_is_each_sequence_alone(lengths, chunk_size):
    rng = np.random.default_rng(1)
    B, T = len(lengths), sum(lengths)
    arrays, state = inputs(rng, B=1, S=T)
    arrays = [x[0] for x in arrays]
    state = MLSTMState(*(rng.normal(size=(B, *part.shape[1:])) for part in state))
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    options = dict(return_state=True, chunk_size=chunk_size)
    h, last = reference.mlstm(*arrays, initial_state=state, cu_seqlens=cu, **options)
    assert h.shape == arrays[2].shape
    dh = rng.normal(size=h.shape)
    dlast = MLSTMState(*(rng.normal(size=part.shape) for part in last))
    grads = reference.mlstm_backward(*arrays, initial_state=state, cu_seqlens=cu, dh=dh, dstate=dlast)
    for b in range(B):
        one = np.s_[cu[b] : cu[b + 1]]
        of_b = MLSTMState(*(part[b : b + 1] for part in state))
        alone, its_last = reference.mlstm(*(x[None, one] for x in arrays), initial_state=of_b, **options)
        np.testing.assert_array_equal(h[one], alone[0])
        alone = reference.mlstm_backward(
            *(x[None, one] for x in arrays),
            initial_state=of_b,
            dh=dh[None, one],
            dstate=MLSTMState(*(part[b : b + 1] for part in dlast)),
        )
        for part, its, d, its_d in zip(last, its_last, grads["initial_state"], alone["initial_state"], strict=True):
            np.testing.assert_array_equal(part[b], its[0])
            np.testing.assert_array_equal(d[b], its_d[0])
        for name in "qkvif":
            np.testing.assert_array_equal(grads[name][one], alone[name][0])


def test_step_is_one_step_of_the_sequence():
    arrays, state = inputs(np.random.default_rng(2), S=6)
    h, last = reference.mlstm(*arrays, initial_state=state, return_state=True, eps=0.1)
    for t in range(6):
        h_t, state = reference.mlstm_step(*(x[:, t] for x in arrays), state, eps=0.1)
        np.testing.assert_array_equal(h_t, h[:, t])
    for part, expected in zip(state, last, strict=True):
        np.testing.assert_array_equal(part, expected)


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


def test_ties_count_for_the_carry_and_for_the_floor():
    one = np.ones((1, 1, 1, 1))
    zero = np.zeros((1, 1, 1))
    state = MLSTMState(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 1)))
    dlast = MLSTMState(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1)))
    f = np.full((1, 1, 1), np.inf)
    grads = reference.mlstm_backward(one, one, one, zero, f, initial_state=state, dh=one, dstate=dlast)
    assert grads["initial_state"].m == 1
    assert grads["q"] == 1, "|n·q̂| = 1 is the floor itself: h = Cᵀq̂"
    assert grads["i"] == 1, "k·dk alone: m is not attained by i"


def test_nothing_is_written_to_and_nothing_aliased():
    arrays, state = inputs(np.random.default_rng(6), S=0)
    before = [x.copy() for x in (*arrays, *state)]
    h, last = reference.mlstm(*arrays, initial_state=state, return_state=True)
    grads = reference.mlstm_backward(*arrays, initial_state=state, dh=h, dstate=last)
    outputs = [h, *last, *grads["initial_state"]]
    for x, y in zip((*arrays, *state), before, strict=True):
        np.testing.assert_array_equal(x, y)
        assert not any(np.shares_memory(x, output) for output in outputs)


@pytest.mark.parametrize("size", HUGE[np.float64])
@pytest.mark.parametrize("chunk_size", [None, 1, 7])
def test_everything_is_finite_for_gates_of_any_size(size, chunk_size):
    arrays = huge(size, np.float64)
    h, state = reference.mlstm(*arrays, return_state=True, chunk_size=chunk_size)
    gradients = reference.mlstm_backward(*arrays, dh=np.ones_like(h))
    assert all(np.isfinite(x).all() for x in (h, *state, *gradients.values()))
