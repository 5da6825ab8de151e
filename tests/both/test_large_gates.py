"""The mLSTM's weights are exact to roundoff however large the gates are."""

import numpy as np
import pytest

import reference
from tests.both.tools import native, pulled
from tests.grids import larger
from tests.large_gates import CALLS, CHUNKS, HUGE, STEADY, falling, huge, inputs, relative_error, steadily_falling

INF = float("inf")


def chunks(framework, chunk_size=16, **options):
    return lambda *x: framework.package.mlstm(*x, chunk_size=chunk_size, **options)


def packed(framework):
    """The sequences one after the other, each of them cut in three; h has the layout of the arrays."""

    def call(*arrays):
        B, S = arrays[0].shape[:2]
        bounds = np.array([b * S + at for b in range(B) for at in (0, S // 3, S // 2)] + [B * S], np.int32)
        flat = [x.reshape(B * S, *x.shape[2:]) for x in arrays]
        h = framework.package.mlstm(*flat, cu_seqlens=framework.array(bounds, "int32"), chunk_size=16)
        return h.reshape(B, S, *h.shape[1:])

    return call


def fwbw(framework, keep=False):
    """Both heads through the fwbw interface; mapped, as its callers do."""
    config = {"chunk_size": 16, **dict.fromkeys(("keep_G", "keep_gates", "keep_M", "keep_c"), keep)}
    function = framework.package.mlstm_fwbw_custom_grad(config)
    return framework.vmap(function, 2, 2)


FORMS = {
    "steps": lambda framework: framework.steps,
    "chunks": chunks,
    "short chunks": lambda framework: chunks(framework, 7),
    "packed": packed,
    "fwbw": fwbw,
    "fwbw with residuals": lambda framework: fwbw(framework, True),
}
forms = pytest.mark.parametrize("form", ["steps", *(larger(name) for name in FORMS if name != "steps")])
"""Laws try dense calls and steps with gates of these sizes."""


def values(framework, function, arrays, dtype="float32"):
    with framework.wide(dtype == "float64"):
        return framework.numpy(function(*native(framework, arrays, dtype)))


@pytest.mark.grid
@pytest.mark.parametrize(("kind", "size"), [*CALLS, *(("equal", size) for size in (1e12, 1e15, 1e20))])
def test_float32_is_exact_to_roundoff(framework, kind, size):
    arrays = inputs(kind, size)
    expected = reference.mlstm(*(x.astype(np.float64) for x in arrays))
    for chunk_size in CHUNKS:
        assert relative_error(values(framework, chunks(framework, chunk_size), arrays), expected) < 2e-6, chunk_size
    assert relative_error(values(framework, framework.steps, arrays), expected) < 2e-6


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [*CHUNKS, "steps"])
def test_a_shift_of_all_input_gates_moves_nothing_in_float64(framework, chunk_size):
    *qkv, i, f = inputs("shifted", 0.0, np.float64)
    function = framework.steps if chunk_size == "steps" else chunks(framework, chunk_size)
    shifted, plain = (values(framework, function, (*qkv, gate, f), "float64") for gate in (i + 2.0**20, i))
    assert relative_error(shifted, plain) < 1e-14


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


@pytest.mark.long
@pytest.mark.grid
@pytest.mark.parametrize("S", [70, 1031])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_everything_is_finite_up_to_the_stated_stabiliser(framework, dtype, S):
    arrays = falling(np.dtype(dtype).type, S)
    for function in (framework.package.mlstm, framework.steps):
        h, gradients = pulled(framework, function, arrays, [np.ones_like(arrays[2])], dtype)
        assert all(np.isfinite(x).all() for x in (*h, *gradients))


@forms
@pytest.mark.parametrize("dtype", ["float32", larger("float64")])
def test_everything_is_finite_for_gates_of_any_size(framework, form, dtype):
    dh = np.random.default_rng(0).normal(size=(2, 20, 2, 4))
    for size in HUGE[np.dtype(dtype).type]:
        arrays = huge(size, np.dtype(dtype).type, S=20)
        h, gradients = pulled(framework, FORMS[form](framework), arrays, [dh], dtype)
        assert all(np.isfinite(x).all() for x in (*h, *gradients)), size


@forms
def test_a_memory_outlasts_roundoff_that_adds_up(framework, form):
    """All weights but that of the first write are 0, so h is the first v, and its gradient sums all cotangents."""
    function, first = FORMS[form](framework), 70 // 3 if form == "packed" else 70
    for decay, size in STEADY:
        arrays = steadily_falling(decay, size)
        h = values(framework, function, arrays)[:, :first]
        assert relative_error(h, np.broadcast_to(arrays[2][:, :1], h.shape)) < 2e-6, (decay, size)
    dh = np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32)
    _, gradients = pulled(framework, function, steadily_falling(5.0, 7e7), [dh], "float32")
    assert all(np.isfinite(x).all() for x in gradients)
    np.testing.assert_allclose(gradients[2][:, 0], dh[:, :first].sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packing", [None, larger([0, 69, 138])])
def test_a_state_that_is_passed_on_keeps_its_memory_however_often_its_m_is_rounded(framework, packing):
    """Thirty calls, of which each loses or gains what the rounding of its final m takes."""
    arrays = [x[:, 1:] for x in steadily_falling(5.0, 7e7)]
    arrays = [x if packing is None else x.reshape(-1, *x.shape[2:]) for x in arrays]
    arrays = native(framework, arrays, "float32")
    bounds = None if packing is None else framework.array(np.array(packing), "int32")
    C = np.random.default_rng(0).uniform(1, 2, (2, 2, 1, 4))
    state = native(framework, [np.repeat(C, 4, axis=2), np.ones((2, 2, 4)), np.full((2, 2), 7e7)], "float32")

    def call(*x):
        options = {"cu_seqlens": bounds, "chunk_size": 16, "return_state": True}
        return framework.package.mlstm(*x[:5], initial_state=tuple(x[5:]), **options)

    sizes = [
        (framework.numpy(x).shape, size) for x, size in zip((arrays[2], *state), (1.0, 0.0, 0.0, 0.0), strict=True)
    ]
    dh = native(framework, [np.full(*size) for size in sizes], "float32")
    for _ in range(30):
        (h, *state), gradients = framework.pull_back(call, [*arrays, *state], dh)
        assert all(np.isfinite(framework.numpy(x)).all() for x in (*state, *gradients))
        h = framework.numpy(h).reshape(2, 69, 2, 4)
        assert relative_error(h, np.broadcast_to(C.reshape(2, 1, 2, 4), h.shape)) < 1e-5
