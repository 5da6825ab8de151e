"""Gates of any size: the sLSTM, and forms of the mLSTM that no law tries with them (packed, fwbw, passed-on states)."""

import numpy as np
import pytest

from tests.both.tools import native, pulled
from tests.large_gates import HUGE, STEADY, huge, relative_error, steadily_falling

INF = float("inf")


def packed(framework):
    """The sequences one after the other, each of them cut in three; h has the layout of the arrays."""

    def call(*arrays):
        B, S = arrays[0].shape[:2]
        bounds = np.array([b * S + at for b in range(B) for at in (0, S // 3, S // 2)] + [B * S], np.int32)
        flat = [x.reshape(B * S, *x.shape[2:]) for x in arrays]
        h = framework.package.mlstm(*flat, cu_seqlens=framework.array(bounds, "int32"), chunk_size=16)
        return h.reshape(B, S, *h.shape[1:])

    return call


def fwbw(framework):
    """Both heads through the fwbw interface, with all residuals; mapped, as its callers do."""
    config = {"chunk_size": 16, **dict.fromkeys(("keep_G", "keep_gates", "keep_M", "keep_c"), True)}
    return framework.vmap(framework.package.mlstm_fwbw_custom_grad(config), 2, 2)


forms = pytest.mark.parametrize("form", [packed, fwbw])
RESETS = (([1e32, -INF], [0.0, -INF]), ([0.0, -INF, 1.0], [0.0, -INF, 2.0]), ([-INF, 3e38, -INF], [1.0, -3e38, 0.0]))


@pytest.mark.parametrize(("i", "f"), RESETS)
def test_a_reset_after_a_large_write_is_finite(framework, i, f):
    check_reset(framework, i, f)


def check_reset(framework, i, f):
    S, found = len(i), []
    arrays = [*(np.ones((1, S, 1, 2)) for _ in "qkv"), *(np.reshape(x, (1, S, 1)) for x in (i, f))]
    for function in (framework.package.mlstm, framework.steps):
        (h,), gradients = pulled(framework, function, arrays, [np.ones((1, S, 1, 2))], "float32")
        assert all(np.isfinite(x).all() for x in (h, *gradients)), (i, f)
        found.append(h)
    np.testing.assert_allclose(*found, rtol=1e-5)


@forms
def test_everything_is_finite(framework, form):
    dh = np.random.default_rng(0).normal(size=(2, 20, 2, 4))
    for size in HUGE[np.float32]:
        h, gradients = pulled(framework, form(framework), huge(size, S=20), [dh], "float32")
        assert all(np.isfinite(x).all() for x in (*h, *gradients)), size


@forms
def test_a_memory_outlasts_roundoff_that_adds_up(framework, form):
    """All weights but that of the first write are 0, so h is the first v, and its gradient sums all cotangents."""
    function, first = form(framework), 70 // 3 if form is packed else 70
    dh = np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32)
    for decay, size in STEADY:
        arrays = steadily_falling(decay, size)
        (h,), gradients = pulled(framework, function, arrays, [dh], "float32")
        expected = np.broadcast_to(arrays[2][:, :1], h[:, :first].shape)
        assert relative_error(h[:, :first], expected) < 2e-6, (decay, size)
        assert all(np.isfinite(x).all() for x in gradients)
        if (decay, size) == (5.0, 7e7):
            np.testing.assert_allclose(gradients[2][:, 0], dh[:, :first].sum(1), rtol=1e-4, atol=1e-4)


def test_a_state_that_is_passed_on_keeps_its_memory_however_often_its_m_is_rounded(framework):
    """Thirty calls, of which each loses or gains what the rounding of its final m takes."""
    arrays = native(framework, [x[:, 1:] for x in steadily_falling(5.0, 7e7)], "float32")
    C = np.random.default_rng(0).uniform(1, 2, (2, 2, 1, 4))
    state = native(framework, [np.repeat(C, 4, axis=2), np.ones((2, 2, 4)), np.full((2, 2), 7e7)], "float32")

    def call(*x):
        return framework.package.mlstm(*x[:5], initial_state=tuple(x[5:]), chunk_size=16, return_state=True)

    shapes = [framework.numpy(x).shape for x in (arrays[2], *state)]
    dh = native(framework, [np.full(shape, float(not at)) for at, shape in enumerate(shapes)], "float32")
    for _ in range(30):
        (h, *state), gradients = framework.pull_back(call, [*arrays, *state], dh)
        assert all(np.isfinite(framework.numpy(x)).all() for x in (*state, *gradients))
        h = framework.numpy(h)
        assert relative_error(h, np.broadcast_to(C.reshape(2, 1, 2, 4), h.shape)) < 1e-5


def slstm(framework, forget_gate="sigmoid", packed=False):
    """h of the sLSTM without products, of z, i, f and o, ``(1, S, 1, H)``."""

    def call(*arrays):
        shape = arrays[0].shape
        weights = native(framework, [np.zeros((1, shape[-1], shape[-1]))] * 4, "float32")
        if not packed:
            return framework.package.slstm(*arrays, *weights, forget_gate=forget_gate)
        bounds = framework.array(np.array([0, shape[1]], np.int32), "int32")
        flat = (x.reshape(shape[1:]) for x in arrays)
        return framework.package.slstm(*flat, *weights, forget_gate=forget_gate, cu_seqlens=bounds).reshape(shape)

    return call


def slstm_gates(kind, size, S=100):
    """z, i, f and o, ``(1, S, 1, 2)``: a write, then decays and nothing else; or gates of both signs with a reset."""
    rng, shape = np.random.default_rng(7), (1, S, 1, 2)
    i, f = size * rng.uniform(-1, 1, shape), size * rng.uniform(-1, 1, shape)
    i[:, S // 2], f[:, S // 2] = -np.inf, -np.inf
    if kind == "falling":
        i, f = np.full(shape, -min(S * size, 3e38)), -size * rng.random(shape)
        i[:, 0] = 0.0
    return [rng.normal(size=shape), i, f, rng.normal(size=shape)]


@pytest.mark.grid
@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
@pytest.mark.parametrize("kind", ["falling", "any"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_result_of_the_slstm_is_finite(framework, kind, packed, forget_gate):
    dh = np.random.default_rng(0).normal(size=(1, 100, 1, 2))
    for size in HUGE[np.float32]:
        arrays = slstm_gates(kind, size)
        if forget_gate == "exp":
            arrays[2] = -np.abs(arrays[2])
        h, gradients = pulled(framework, slstm(framework, forget_gate, packed), arrays, [dh], "float32")
        assert all(np.isfinite(x).all() for x in (*h, *gradients)), size


@pytest.mark.parametrize("size", [6e4, 1e6, 7e7, 1e20])
@pytest.mark.parametrize("f", [3.0, -3.0])
def test_a_memory_of_the_slstm_outlasts_roundoff_that_adds_up(framework, f, size):
    """Every decay is rounded in the same way; h is that of the first write, and its gradient sums all cotangents."""
    S = 8192
    z, i, f, o = (np.full((1, S, 1, 2), x) for x in (0.7, -1e30, f, 1.0))
    i[:, 0] = size
    (h,), gradients = pulled(framework, slstm(framework), [z, i, f, o], [np.ones(z.shape)], "float32")
    weight = 1 / (1 + np.exp(-1.0))
    assert relative_error(h, np.full(h.shape, weight * np.tanh(0.7))) < 1e-5
    assert relative_error(gradients[0][:, 0], np.full((1, 1, 2), S * weight / np.cosh(0.7) ** 2)) < 1e-3
    assert all(np.isfinite(x).all() for x in gradients)


def test_single_steps_of_the_slstm_keep_a_memory_however_often_m_is_rounded(framework):
    z, i, f, o = native(framework, [np.full((1, 1, 2), x) for x in (0.0, -1e30, -5.0, 1.0)], "float32")
    weights = native(framework, [np.zeros((1, 2, 2))] * 4, "float32")
    for size in (6e4, 7e7, 1e20):
        parts = native(framework, [np.full((1, 1, 2), x) for x in (0.5, 1.0, size, 0.0)], "float32")
        state = framework.package.SLSTMState(*parts)
        for _ in range(200):
            h, state = framework.package.slstm_step(z, i, f, o, *weights, state)
        assert relative_error(framework.numpy(h), np.full((1, 1, 2), 0.5 / (1 + np.exp(-1.0)))) < 1e-5


def test_a_shift_of_all_input_gates_changes_nothing_in_the_slstm(framework):
    """Only differences of log weights count, up to an m of 2¹⁶."""
    rng = np.random.default_rng(1)
    z, f, o = rng.normal(size=(3, 1, 50, 1, 8))
    i = rng.integers(-16, 17, z.shape) / 8
    dh = rng.normal(size=z.shape)
    results = []
    for shift in (0.0, 2.0**16):
        h, gradients = pulled(framework, slstm(framework), [z, i + shift, 3 + f, o], [dh], "float32")
        results.append([*h, *gradients])
    for own, shifted in zip(*results, strict=True):
        np.testing.assert_allclose(shifted, own, rtol=1e-4, atol=1e-6)
