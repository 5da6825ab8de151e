"""Gates of any size in forms of the mLSTM that no law tries with them: packed, fwbw, and states that are passed on."""

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
