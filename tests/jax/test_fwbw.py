"""fwbw: the drop-in interface, what each switch keeps, heads by an outer vmap."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl import mLSTMBackendFwbwConfig
from tests.jax import loops
from tests.jax.tools import assert_close, like, normal, pull_back, relative_error

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


def loop(stabilize_correctly: bool):
    """The definition in this interface's layout, one head."""

    def one_head(q, k, v, i, f, *state):
        q, k, v = (x[:, :, None] for x in (q, k, v))
        i, f = (x.reshape(*x.shape[:2], 1) for x in (i, f))
        h, last = loops.mlstm(q, k, v, i, f, *(x[:, None] for x in state), stabilize_correctly=stabilize_correctly)
        return h[:, :, 0], tuple(part[:, 0] for part in last)

    return one_head


@functools.cache
def exact(stabilize_correctly: bool, with_state: bool):
    """A call, cotangents, and the loop's results and gradients in float64."""
    rng = np.random.default_rng(0 if with_state else 2)
    # The layout of the gates goes with it: an axis of their own, or none.
    arguments = (*inputs(rng, gate_axis=True), *state(rng)) if with_state else inputs(rng)
    one_head = loop(stabilize_correctly)
    function = one_head if with_state else lambda *x: one_head(*x)[0]
    with jax.enable_x64(True):
        cotangents = like(rng, (arguments[2], arguments[5:]) if with_state else arguments[2])
        expected, gradients = jax.jit(lambda x, dy: pull_back(function, x, dy))(arguments, cotangents)
    return arguments, cotangents, expected, gradients


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


@pytest.mark.grid
@pytest.mark.parametrize("kept", [(), *((name,) for name in KEEPS), KEEPS])
@pytest.mark.parametrize("stabilize_correctly", [False, True])
def test_switches_change_no_value(kept, stabilize_correctly):
    arguments, cotangents, expected, gradients = exact(stabilize_correctly, with_state=True)
    with jax.enable_x64(True):
        config = configuration(stabilize_correctly=stabilize_correctly, **{name: name in kept for name in KEEPS})
        result, ctx = jax_impl.fwbw_forward(*arguments[:5], config, *arguments[5:])
        got = jax_impl.fwbw_backward(ctx, cotangents[0], config, *cotangents[1])
        assert_close(result, expected, 1e-11)
        assert_close(got, gradients, 1e-11)
        if len(kept) != 1:
            _, got = pull_back(jax_impl.mlstm_fwbw_custom_grad(config), arguments, cotangents)
            assert_close(got, gradients, 1e-11)


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


@pytest.mark.grid
@pytest.mark.parametrize("chunk_size", [None, 1, 5, 512])
@pytest.mark.parametrize("stabilize_correctly", [False, True])
def test_chunk_size_changes_no_value(chunk_size, stabilize_correctly):
    arguments, dh, expected, gradients = exact(stabilize_correctly, with_state=False)
    config = dict(chunk_size=chunk_size, stabilize_correctly=stabilize_correctly)
    with jax.enable_x64(True):
        result, got = pull_back(jax_impl.mlstm_fwbw_custom_grad(config), arguments, dh)
    assert_close(result, expected, 1e-11)
    assert_close(got, gradients, 1e-11)


def test_initial_state_left_out_is_zeros():
    rng = np.random.default_rng(3)
    arguments = inputs(rng, dtype=np.float32)
    config = configuration()
    zeros = [np.zeros(shape, np.float32) for shape in ((B, K, V), (B, K), (B,))]
    without, ctx = jax_impl.fwbw_forward(*arguments, config)
    with_zeros, ctx_zeros = jax_impl.fwbw_forward(*arguments, config, *zeros)
    assert_close(without, with_zeros, 1e-6)
    dh = normal(rng, B, T, V, dtype=np.float32)
    got = jax_impl.fwbw_backward(ctx, dh, config)
    assert [x is None for x in got] == [False] * 8
    assert_close(got, jax_impl.fwbw_backward(ctx_zeros, dh, config), 1e-6)
    plain = configuration(use_initial_state=False)
    _, ctx = jax_impl.fwbw_forward(*arguments, plain)
    assert [x is None for x in jax_impl.fwbw_backward(ctx, dh, plain)] == [False] * 5 + [True] * 3
    _, got = pull_back(jax_impl.mlstm_fwbw_custom_grad(config), arguments, like(rng, without))
    assert len(got) == 5


def test_heads_by_outer_vmap_is_the_multi_head_operation():
    """Nested twice, jitted and differentiated; the same as `mlstm` with those heads."""
    rng = np.random.default_rng(4)
    heads = (2, 3)
    arguments = (*inputs(rng, *heads, dtype=np.float32), *state(rng, *heads, dtype=np.float32))
    function = jax_impl.mlstm_fwbw_custom_grad(configuration(stabilize_correctly=True, keep_G=True, keep_M=True))
    mapped = jax.jit(jax.vmap(jax.vmap(function)))
    cotangents = like(rng, (arguments[2], arguments[5:]))
    result, got = pull_back(mapped, arguments, cotangents)

    def multi_head(q, k, v, i, f, *state):
        h, last = jax_impl.mlstm(
            *(jnp.moveaxis(x.reshape(6, *x.shape[2:]), 0, 2) for x in (q, k, v, i, f)),
            initial_state=tuple(jnp.moveaxis(x.reshape(6, *x.shape[2:]), 0, 1) for x in state),
            return_state=True,
        )
        split = [jnp.moveaxis(h, 2, 0), *(jnp.moveaxis(part, 1, 0) for part in last)]
        h, *last = (x.reshape(*heads, *x.shape[1:]) for x in split)
        return h, tuple(last)

    expected, gradients = pull_back(multi_head, [jnp.asarray(x) for x in arguments], cotangents)
    assert_close(result, expected, 1e-4)
    assert_close(got, gradients, 1e-4)


def test_forward_is_differentiated_through_its_result():
    rng = np.random.default_rng(5)
    arguments = inputs(rng, dtype=np.float32)
    config = dict(chunk_size=L, keep_G=True)
    dh = like(rng, arguments[2])
    _, got = pull_back(lambda *x: jax_impl.fwbw_forward(*x, config)[0], arguments, dh)
    _, expected = pull_back(jax_impl.mlstm_fwbw_custom_grad(config), arguments, dh)
    assert_close(got, expected, 1e-6)


def test_second_derivative_raises():
    arguments = inputs(np.random.default_rng(6), dtype=np.float32)
    function = jax_impl.mlstm_fwbw_custom_grad({})

    def loss(q):
        return jnp.sum(function(q, *arguments[1:]) ** 2)

    with pytest.raises(NotImplementedError, match=r"^fwbw_backward: forward-mode and second derivatives"):
        jax.grad(lambda q: jnp.sum(jax.grad(loss)(q)))(arguments[0])


def test_gate_axis_comes_back_with_each_gate():
    rng = np.random.default_rng(7)
    q, k, v, i, f = inputs(rng, dtype=np.float32)
    _, ctx = jax_impl.fwbw_forward(q, k, v, i[..., None], f, {})
    got = jax_impl.fwbw_backward(ctx, v, {})
    assert (got[3].shape, got[4].shape) == ((B, T, 1), (B, T))


@pytest.mark.parametrize("steps", [0, 1])
def test_short_sequences(steps):
    rng = np.random.default_rng(8)
    arguments = (*inputs(rng, T=steps, dtype=np.float32), *state(rng, dtype=np.float32))
    config = configuration(keep_G=True, keep_M=True, keep_c=True)
    result, ctx = jax_impl.fwbw_forward(*arguments[:5], config, *arguments[5:])
    expected, expected_ctx = reference.fwbw_forward(*arguments[:5], config, *arguments[5:])
    assert_close(result, expected, 1e-5)
    cotangents = [np.asarray(x) for x in jax.tree.leaves(like(rng, result))]
    got = jax_impl.fwbw_backward(ctx, cotangents[0], config, *cotangents[1:])
    assert_close(got, reference.fwbw_backward(expected_ctx, cotangents[0], config, *cotangents[1:]), 1e-5)


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ({"chunk_size": 3}, "chunk_size=4"),
        ({"keep_G": True}, "keep_G=False"),
        ({"use_initial_state": False}, "use_initial_state=True"),
    ],
)
def test_a_context_of_another_configuration_is_refused(change, made):
    arguments = inputs(np.random.default_rng(9), T=5, dtype=np.float32)
    _, ctx = jax_impl.fwbw_forward(*arguments, configuration())
    ((name, value),) = change.items()
    text = f"^fwbw_backward: `ctx` is made with {made}; expected {name}={value} to match `config`$"
    with pytest.raises(ValueError, match=text):
        jax_impl.fwbw_backward(ctx, arguments[2], configuration(**change))
    jax_impl.fwbw_backward(ctx, arguments[2], configuration(return_state=False))


@pytest.mark.parametrize(("ctx", "got"), [(None, "None"), ((1, 2), "a tuple")])
def test_what_is_not_a_context_is_refused(ctx, got):
    arguments = inputs(np.random.default_rng(9), dtype=np.float32)
    with pytest.raises(TypeError, match=f"^fwbw_backward: `ctx` is {got}; expected the context"):
        jax_impl.fwbw_backward(ctx, arguments[2], {})


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


@pytest.mark.parametrize("kind", ["dataclass", "dict"])
def test_a_configuration_is_read_when_a_function_is_made_of_it(kind):
    x = [np.ones((2, 5, *width), np.float32) for width in ((3,), (3,), (4,), (), ())]
    config = mLSTMBackendFwbwConfig(chunk_size=4) if kind == "dataclass" else {"chunk_size": 4}
    function = jax_impl.mlstm_fwbw_custom_grad(config)
    if isinstance(config, dict):
        config["chunk_size"] = -5
    else:
        config.chunk_size = -5
    h, gradient = jax.eval_shape(jax.value_and_grad(lambda q: function(q, *x[1:]).sum()), x[0])
    assert (h.shape, gradient.shape) == ((), (2, 5, 3))
    with pytest.raises(ValueError, match=r"`config\.chunk_size` is -5"):
        jax_impl.mlstm_fwbw_custom_grad(config)(*x)
