"""fwbw: what each switch keeps, the context as a pytree, calls like earlier ones."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
from jax_impl import mLSTMBackendFwbwConfig
from tests.jax.tools import assert_close, normal, relative_error

B, T, K, V, L = 2, 11, 5, 7, 4
CHUNKS = -(-T // L)
KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")
KEPT_SHAPES = {
    "keep_G": [(B, CHUNKS, L, L)],
    "keep_gates": [(B, CHUNKS, L)] * 2,
    "keep_M": [(B, T)],
    "keep_c": [(B, CHUNKS, K, V), (B, CHUNKS, K), (B, CHUNKS)],
}


def inputs(rng, *lead: int, T: int = T, dtype=np.float64, gate_axis: bool = False):
    gates = (T, 1) if gate_axis else (T,)
    shapes = [(B, T, K), (B, T, K), (B, T, V), (B, *gates), (B, *gates)]
    return tuple(normal(rng, *lead, *shape, dtype=dtype) for shape in shapes)


def state(rng, *lead: int, dtype=np.float64):
    return tuple(normal(rng, *lead, B, *shape, dtype=dtype) for shape in ((K, V), (K,), ()))


def configuration(**fields):
    return mLSTMBackendFwbwConfig(**{"chunk_size": L, "return_state": True, "use_initial_state": True, **fields})


@pytest.mark.parametrize("kept", list(itertools.product([False, True], repeat=4)))
def test_switches_change_what_is_kept(kept):
    """The arrays in the context, and those that the differentiated function keeps, are what the configuration says."""
    rng = np.random.default_rng(0)
    arguments = (*inputs(rng, gate_axis=True, dtype=np.float32), *state(rng, dtype=np.float32))
    config = configuration(**dict(zip(KEEPS, kept, strict=True)))
    extra = [shape for name, keep in zip(KEEPS, kept, strict=True) if keep for shape in KEPT_SHAPES[name]]
    expected = sorted([x.shape for x in arguments] + extra)
    forward = jax.eval_shape(lambda *x: jax_impl.fwbw_forward(*x[:5], config, *x[5:])[1], *arguments)
    assert sorted(x.shape for x in jax.tree.leaves(forward)) == expected
    function = jax_impl.mlstm_fwbw_custom_grad(config)
    residuals = jax.eval_shape(lambda *x: jax.vjp(function, *x)[1], *arguments)
    assert sorted(x.shape for x in jax.tree.leaves(residuals)) == expected


def test_what_is_kept_is_used():
    """A kept array that is changed changes the gradient: the backward pass reads it and does not compute it again."""
    rng = np.random.default_rng(1)
    config = configuration(**dict.fromkeys(KEEPS, True))
    arguments = (*inputs(rng, dtype=np.float32), *state(rng, dtype=np.float32))
    _, ctx = jax_impl.fwbw_forward(*arguments[:5], config, *arguments[5:])
    dh = normal(rng, B, T, V, dtype=np.float32)
    untouched = jax_impl.fwbw_backward(ctx, dh, config)
    for name in ("G", "gates", "M", "c"):
        changed = replace(ctx, **{name: jax.tree.map(lambda x: x - 0.5, getattr(ctx, name))})
        assert relative_error(jax_impl.fwbw_backward(changed, dh, config)[0], untouched[0]) > 1e-3


def test_second_derivative_raises():
    arguments = inputs(np.random.default_rng(6), dtype=np.float32)
    function = jax_impl.mlstm_fwbw_custom_grad({})

    def loss(q):
        return jnp.sum(function(q, *arguments[1:]) ** 2)

    with pytest.raises(NotImplementedError, match=r"^fwbw_backward: forward-mode and second derivatives"):
        jax.grad(lambda q: jnp.sum(jax.grad(loss)(q)))(arguments[0])


def test_a_context_is_a_pytree_that_keeps_its_configuration():
    """Through jit and vmap, and whatever becomes of the configuration that the caller holds."""
    rng = np.random.default_rng(10)
    arguments = inputs(rng, 2, dtype=np.float32)
    config = configuration(keep_G=True)
    forward = jax.jit(jax.vmap(lambda *x: jax_impl.fwbw_forward(*x, config)[1]))
    ctx = forward(*arguments)
    backward = jax.jit(jax.vmap(lambda ctx, dh: jax_impl.fwbw_backward(ctx, dh, configuration(keep_G=True))))
    config.chunk_size = 3
    assert ctx.config == configuration(keep_G=True)
    got = backward(ctx, arguments[2])
    for at in range(2):
        single = [x[at] for x in arguments]
        _, plain = jax_impl.fwbw_forward(*single, configuration())
        expected = jax_impl.fwbw_backward(plain, single[2], configuration())
        assert_close([x[at] for x in got], expected, 1e-5)


def test_a_call_like_an_earlier_one_is_decided_by_what_it_is_given_now():
    """Checks and options are cached: by the configuration's values at the time of the call, not by the object."""
    arguments = inputs(np.random.default_rng(11), T=5, dtype=np.float32)
    config = configuration(return_state=False)
    h, ctx = jax_impl.fwbw_forward(*arguments, config)
    assert ctx.G is None
    gradients = jax_impl.fwbw_backward(ctx, arguments[2], config)
    config.keep_G, config.return_state = True, True
    (again, _), kept = jax_impl.fwbw_forward(*arguments, config)
    np.testing.assert_array_equal(again, h)
    assert kept.G is not None and kept.config == config
    assert_close(jax_impl.fwbw_backward(kept, arguments[2], config), gradients, 1e-5)
    ctx.config.keep_M = True
    _, later = jax_impl.fwbw_forward(*arguments, configuration(return_state=False))
    assert later.M is None
    wrong = arguments[1][..., :-1]
    with pytest.raises(ValueError, match=r"^fwbw_forward: `k` is "):
        jax_impl.fwbw_forward(arguments[0], wrong, *arguments[2:], config)
    with pytest.raises(ValueError, match=r"^fwbw_backward: `dh` is "):
        jax_impl.fwbw_backward(kept, wrong, config)
