"""The mLSTM's weights are exact to roundoff however large the gates are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import MLSTMState
from tests.large_gates import CALLS, CHUNKS, HUGE, STEADY, falling, huge, inputs, relative_error, steadily_falling

INF = float("inf")


@jax.jit
def steps(arrays):
    B, _, N, K = arrays[0].shape
    V, dtype = arrays[2].shape[-1], arrays[2].dtype
    state = MLSTMState(*(jnp.zeros(shape, dtype) for shape in ((B, N, K, V), (B, N, K), (B, N))))

    def step(state, x):
        h, state = jax_impl.mlstm_step(*x, state)
        return state, h

    _, h = jax.lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in arrays))
    return jnp.moveaxis(h, 0, 1)


@pytest.mark.grid
@pytest.mark.parametrize(("kind", "size"), CALLS)
def test_float32_is_exact_to_roundoff(kind, size):
    arrays = inputs(kind, size)
    expected = reference.mlstm(*(x.astype(np.float64) for x in arrays))
    for chunk_size in CHUNKS:
        assert relative_error(jax_impl.mlstm(*arrays, chunk_size=chunk_size), expected) < 2e-6, chunk_size
    assert relative_error(steps(arrays), expected) < 2e-6


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [*CHUNKS, "steps"])
def test_a_shift_of_all_input_gates_moves_nothing_in_float64(chunk_size):
    with jax.enable_x64(True):
        *qkv, i, f = (jnp.asarray(x) for x in inputs("shifted", 0.0, np.float64))
        call = steps if chunk_size == "steps" else lambda arrays: jax_impl.mlstm(*arrays, chunk_size=chunk_size)
        assert relative_error(call((*qkv, i + 2.0**20, f)), np.asarray(call((*qkv, i, f)))) < 1e-14


@pytest.mark.parametrize(
    ("i", "f"),
    [([1e32, -INF], [0.0, -INF]), ([0.0, -INF, 1.0], [0.0, -INF, 2.0]), ([-INF, 3e38, -INF], [1.0, -3e38, 0.0])],
)
def test_a_reset_after_a_large_write_is_finite(i, f):
    S = len(i)
    arrays = (*(np.ones((1, S, 1, 2), np.float32) for _ in "qkv"), *(np.float32(x).reshape(1, S, 1) for x in (i, f)))
    h = jax_impl.mlstm(*arrays)
    np.testing.assert_allclose(steps(arrays), h)
    for call in (lambda *x: jax_impl.mlstm(*x), lambda *x: steps(x)):
        gradients = jax.grad(lambda *x, call=call: call(*x).sum(), argnums=range(5))(*arrays)
        assert all(np.isfinite(x).all() for x in (h, *gradients))


@pytest.mark.parametrize("S", [70, 1031])
def test_everything_is_finite_up_to_the_stated_stabiliser(S):
    arrays = tuple(map(jnp.asarray, falling(np.float32, S)))
    for function in (lambda arrays: jax_impl.mlstm(*arrays), steps):
        h = function(arrays)
        gradients = jax.grad(lambda arrays, function=function: jnp.sum(function(arrays)))(arrays)
        assert jnp.isfinite(h).all() and all(jnp.isfinite(x).all() for x in gradients)


def packed(arrays):
    """The sequences one after the other, each of them cut in three; h has the layout of the arrays."""
    B, S = arrays[0].shape[:2]
    bounds = np.array([b * S + at for b in range(B) for at in (0, S // 3, S // 2)] + [B * S])
    h = jax_impl.mlstm(*(x.reshape(B * S, *x.shape[2:]) for x in arrays), cu_seqlens=bounds, chunk_size=16)
    return h.reshape(B, S, *h.shape[1:])


def dense(arrays):
    return jax_impl.mlstm(*arrays, chunk_size=16)


def fwbw(arrays):
    """Both heads through the fwbw interface, of which nothing is a residual; mapped, as its callers do."""
    function = jax_impl.mlstm_fwbw_custom_grad({"chunk_size": 16, "keep_gates": False})
    return jax.vmap(function, in_axes=2, out_axes=2)(*arrays)


FORMS = [steps, *(pytest.param(form, marks=pytest.mark.whole_grid) for form in (dense, packed, fwbw))]
"""Laws try dense calls and steps with gates of these sizes."""


@pytest.mark.parametrize("form", FORMS)
def test_everything_is_finite_for_gates_of_any_size(form):
    dh = jnp.asarray(np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32))
    both = jax.jit(lambda arrays: jax.value_and_grad(lambda arrays: jnp.sum(dh * form(arrays)))(arrays))
    for size in HUGE[np.float32]:
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(both(huge(size)))), size


@pytest.mark.parametrize("form", FORMS)
def test_a_memory_outlasts_roundoff_that_adds_up(form):
    """All weights but that of the first write are 0, so h is the first v."""
    run = jax.jit(form)
    for decay, size in STEADY:
        arrays = steadily_falling(decay, size)
        h, v = np.asarray(run(arrays)), arrays[2][:, :1]
        if form is packed:
            h = h[:, : h.shape[1] // 3]
        assert relative_error(h, np.broadcast_to(v, h.shape)) < 2e-6, (decay, size)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_outlast_roundoff_that_adds_up(form):
    """h is the first v, so that its gradient is the sum of all cotangents."""
    arrays = tuple(map(jnp.asarray, steadily_falling(5.0, 7e7)))
    dh = jnp.asarray(np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32))
    gradients = jax.jit(jax.grad(lambda arrays: jnp.sum(dh * form(arrays))))(arrays)
    assert all(np.isfinite(x).all() for x in gradients)
    first = 70 // 3 if form is packed else 70
    np.testing.assert_allclose(gradients[2][:, 0], dh[:, :first].sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packing", [None, pytest.param([0, 69, 138], marks=pytest.mark.whole_grid)])
def test_a_state_that_is_passed_on_keeps_its_memory_however_often_its_m_is_rounded(packing):
    """Thirty calls, of which each loses or gains what the rounding of its final m takes."""
    *qkv, i, f = (x[:, 1:] for x in steadily_falling(5.0, 7e7))
    arrays = [x if packing is None else x.reshape(-1, *x.shape[2:]) for x in (*qkv, i, f)]
    bounds = None if packing is None else np.array(packing)

    def sums(arrays, state):
        h, state = jax_impl.mlstm(*arrays, initial_state=state, cu_seqlens=bounds, chunk_size=16, return_state=True)
        return jnp.sum(h), (h, state)

    run = jax.jit(jax.value_and_grad(sums, argnums=1, has_aux=True))
    C = np.random.default_rng(0).uniform(1, 2, (2, 2, 1, 4)).astype(np.float32)
    state = MLSTMState(C=np.repeat(C, 4, axis=2), n=np.ones((2, 2, 4), np.float32), m=np.full((2, 2), 7e7, np.float32))
    for _ in range(30):
        (_, (h, state)), gradients = run(arrays, state)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, gradients)))
        assert relative_error(h.reshape(2, 69, 2, 4), np.broadcast_to(C.reshape(2, 1, 2, 4), (2, 69, 2, 4))) < 1e-5
