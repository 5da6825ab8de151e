"""The mLSTM's weights are exact to roundoff however large the gates are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import MLSTMState
from tests.large_gates import CALLS, CHUNKS, HUGE, falling, huge, inputs, relative_error, steadily_falling

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


FORMS = [steps, *(pytest.param(form, marks=pytest.mark.whole_grid) for form in (dense, packed))]
"""A law tries dense calls with gates of these sizes."""


@pytest.mark.parametrize("form", FORMS)
def test_everything_is_finite_for_gates_of_any_size(form):
    dh = jnp.asarray(np.random.default_rng(0).normal(size=(2, 70, 2, 4)).astype(np.float32))
    both = jax.jit(lambda arrays: jax.value_and_grad(lambda arrays: jnp.sum(dh * form(arrays)))(arrays))
    for size in HUGE[np.float32]:
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(both(huge(size)))), size


@pytest.mark.parametrize("form", FORMS)
def test_a_memory_outlasts_roundoff_that_adds_up(form):
    """All weights but that of the first write are 0, so h is the first v. Every size is above 8e7."""
    run = jax.jit(form)
    for decay, size in ((5.0, 1e8), (3.0, 1e8), (90.0, 3e9)):
        arrays = steadily_falling(decay, size)
        h, v = np.asarray(run(arrays)), arrays[2][:, :1]
        if form is packed:
            h = h[:, : h.shape[1] // 3]
        assert relative_error(h, np.broadcast_to(v, h.shape)) < 2e-6, (decay, size)
