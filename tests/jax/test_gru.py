"""GRU: values and gradients against the definition, grouped heads, clipping, packing, and at the edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from jax_impl._gru import api, packed
from tests.jax import loops
from tests.jax.tools import assert_close, like, normal, pull_back, shapes_in

NAMES = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight", "input_state")
HEADS = [(1, 1, 1, 1, 1, 1), (6, 1, 2, 3, 1, 6), (1, 2, 4, 4, 2, 1), (3, 1, 3, 1, 3, 1)]
PACKING = np.array([0, 0, 3, 20, 20, 31, 32])
LENGTHS = [0, 1, 5, 63, 64, 65, 200]


def inputs(rng, *tokens: int, heads=HEADS[1], H=5, dtype=np.float64):
    shapes = [(heads[at], H, H) if at % 2 else (*tokens, heads[at], H) for at in range(6)]
    return tuple(normal(rng, *shape, dtype=dtype) for shape in shapes)


def state(rng, B, heads=HEADS[1], H=5, dtype=np.float64):
    return normal(rng, B, max(heads), H, dtype=dtype)


# Compiled once for calls of the same shapes, whatever the bound.
differentiated_loop = jax.jit(lambda x, dy, bound: pull_back(functools.partial(loops.gru, bound=bound), x, dy))


def against_loop(arguments, tolerance, clipping=None, dtype=np.float64):
    """Compares values and gradients with those of the loop, in float64."""
    rng = np.random.default_rng(99)
    bound = np.inf if clipping is None else abs(clipping)
    with jax.enable_x64(True):
        cotangents = like(rng, jax.eval_shape(loops.gru, *arguments))
        expected, gradients = differentiated_loop(arguments, cotangents, bound)
    with jax.enable_x64(dtype == np.float64):
        cotangents = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, dtype)), cotangents)
        narrow = [x.astype(dtype) for x in arguments]
        result, got = pull_back(lambda *x: jax_impl.gru(*x, gradient_clipping=clipping), narrow, cotangents)
    assert {x.dtype for x in jax.tree.leaves((result, got))} == {np.dtype(dtype)}
    assert_close(result, expected, tolerance)
    assert_close(got, gradients, tolerance)


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-4)])
@pytest.mark.parametrize("S", LENGTHS)
def test_gradients_are_those_of_the_loop(S, dtype, tolerance):
    rng = np.random.default_rng(S)
    against_loop((*inputs(rng, 2, S), state(rng, 2)), tolerance, dtype=dtype)


def test_products_so_large_that_each_gate_has_its_own():
    rng, H = np.random.default_rng(8), 256
    arguments = (*inputs(rng, 16, 2, heads=(1,) * 6, H=H), state(rng, 16, heads=(1,), H=H))
    assert 16 * H * H > api.MERGED_ON_CPU
    against_loop([x / np.sqrt(H) if x.shape[-2:] == (H, H) else x for x in arguments], 1e-11)


@pytest.mark.grid
@pytest.mark.parametrize("heads", HEADS)
def test_every_count_of_heads(heads):
    rng = np.random.default_rng(0)
    against_loop(inputs(rng, 2, 9, heads=heads), 1e-11)


@pytest.mark.grid
@pytest.mark.parametrize("S", [9, 65])
@pytest.mark.parametrize("clipping", [0.3, -0.05, 0.0])
def test_clipping_is_that_of_the_loop(clipping, S):
    """65 steps are no whole number of blocks: what fills the last one clips nothing."""
    rng = np.random.default_rng(1)
    against_loop((*inputs(rng, 2, S), state(rng, 2)), 1e-11, clipping)


def test_grouped_heads_are_expanded_heads():
    rng = np.random.default_rng(2)
    arguments = inputs(rng, 2, 5, dtype=np.float32)
    expanded = [np.repeat(x, 6 // x.shape[axis], axis=axis) for x, axis in zip(arguments, (2, 0) * 3, strict=True)]
    assert_close(jax_impl.gru(*arguments), jax_impl.gru(*expanded), 1e-6)


@pytest.mark.grid
@pytest.mark.parametrize("clipping", [None, 0.1])
@pytest.mark.parametrize("with_state", [False, True])
def test_packed_is_each_sequence_by_itself(clipping, with_state):
    rng = np.random.default_rng(3)
    B = len(PACKING) - 1
    arguments = inputs(rng, int(PACKING[-1]))
    arguments = (*arguments, state(rng, B) if with_state else None)
    expected = reference.gru(*arguments, clipping, PACKING)
    dy, dstate = (normal(rng, *x.shape) for x in expected)
    gradients = reference.gru_backward(*arguments, clipping, PACKING, dy=dy, dstate=dstate)
    with jax.enable_x64(True):
        function = lambda *x: jax_impl.gru(*x, clipping, PACKING)  # noqa: E731
        result, got = pull_back(function, arguments, (jnp.asarray(dy), jnp.asarray(dstate)))
    assert_close(result, expected, 1e-11)
    assert_close(got, [gradients[name] for name in NAMES if name in gradients], 1e-11)


def test_many_packed_sequences_in_tiles(monkeypatch):
    """Loops of 8 sequences at a time, then of 8 and of 2 at once, over 40 sequences of which some are empty."""
    monkeypatch.setattr(api, "TOGETHER_ON_CPU", 8)
    rng = np.random.default_rng(7)
    lengths = np.concatenate([rng.integers(0, 4, 30), rng.integers(4, 9, 9), [20]])
    packing = np.cumsum([0, *rng.permutation(lengths)])
    arguments = (*inputs(rng, int(packing[-1]), H=2), state(rng, 40, H=2))
    expected = reference.gru(*arguments, 0.1, packing)
    dy, dstate = (normal(rng, *x.shape) for x in expected)
    gradients = reference.gru_backward(*arguments, 0.1, packing, dy=dy, dstate=dstate)
    with jax.enable_x64(True):
        function = lambda *x: jax_impl.gru(*x, 0.1, packing)  # noqa: E731
        result, got = pull_back(function, arguments, (jnp.asarray(dy), jnp.asarray(dstate)))
    assert_close(result, expected, 1e-11)
    assert_close(got, [gradients[name] for name in NAMES], 1e-11)


def test_packed_with_traced_packing_and_float32():
    rng = np.random.default_rng(4)
    B = len(PACKING) - 1
    arguments = (*inputs(rng, int(PACKING[-1]), dtype=np.float32), state(rng, B, dtype=np.float32))
    cotangents = like(rng, jax_impl.gru(*arguments, None, PACKING))
    traced = jax.jit(lambda x, dy, cu: pull_back(lambda *x: jax_impl.gru(*x, None, cu), x, dy))
    for packing in (PACKING, np.array([0, 1, 2, 3, 30, 31, 32])):
        result, got = traced(arguments, cotangents, packing.astype(np.int32))
        assert_close(result, reference.gru(*arguments, None, packing), 1e-4)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    for bad in ([0, -5, 300, 2, 1000, 7, 9], [30, 20, 10, 9, 8, 7, 0], [7, 7, 7, 7, 7, 7, 7]):
        jax.block_until_ready(traced(arguments, cotangents, np.array(bad, np.int32)))


@pytest.mark.parametrize(("tokens", "packing"), [((2, 0), None), ((0, 3), None), ((0,), [0]), ((0,), [0, 0, 0])])
def test_nothing_to_do_returns_the_initial_state(tokens, packing):
    rng = np.random.default_rng(5)
    packing = None if packing is None else np.array(packing)
    B = tokens[0] if packing is None else len(packing) - 1
    arguments = (*inputs(rng, *tokens, dtype=np.float32), state(rng, B, dtype=np.float32))
    cotangents = like(rng, jax_impl.gru(*arguments, 0.1, packing))
    result, got = pull_back(lambda *x: jax_impl.gru(*x, 0.1, packing), arguments, cotangents)
    assert_close(result, reference.gru(*arguments, 0.1, packing), 1e-6)
    # What reaches the initial state is not clipped.
    np.testing.assert_array_equal(got[6], cotangents[1])
    before = np.array(result[1])
    arguments[6][...] = 5
    np.testing.assert_array_equal(result[1], before)


def test_extreme_inputs():
    rng = np.random.default_rng(6)
    arguments = list(inputs(rng, 2, 9, dtype=np.float32))
    for at in (0, 2, 4):
        kinds = rng.integers(0, 6, size=arguments[at].shape)
        for kind, value in enumerate([np.inf, -np.inf, 1e4, -1e4]):
            arguments[at][kinds == kind] = value
    cotangents = like(rng, jax_impl.gru(*arguments))
    result, got = pull_back(jax_impl.gru, arguments, cotangents)
    assert_close(result, reference.gru(*arguments), 1e-5)
    gradients = reference.gru_backward(*arguments, dy=np.asarray(cotangents[0]), dstate=np.asarray(cotangents[1]))
    assert_close(got, [gradients[name] for name in NAMES[:6]], 1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_values_carry_a_float32_state(dtype):
    """No rounding inside the loop: the outputs are those of the same values in float32, rounded once."""
    rng = np.random.default_rng(7)
    arguments = [jnp.asarray(x, dtype) for x in inputs(rng, 2, 65)]
    initial = jnp.asarray(state(rng, 2), jnp.float32)
    cotangents = like(rng, jax_impl.gru(*arguments, initial))
    (y, last), got = pull_back(jax_impl.gru, (*arguments, initial), cotangents)
    wide = [x.astype(jnp.float32) for x in (*arguments, initial)]
    (y_wide, last_wide), expected = pull_back(
        jax_impl.gru, wide, jax.tree.map(lambda x: x.astype(jnp.float32), cotangents)
    )
    assert (y.dtype, last.dtype) == (dtype, jnp.float32)
    assert [x.dtype for x in got] == [dtype] * 6 + [jnp.float32]
    np.testing.assert_array_equal(y, y_wide.astype(dtype))
    np.testing.assert_allclose(last, last_wide, rtol=1e-6, atol=1e-6)
    assert_close(got, expected, float(jnp.finfo(dtype).eps))


def test_weight_gradients_are_products_over_blocks_of_steps():
    """Counted in the jaxpr: what loops over steps makes nothing of a weight's shape; what loops over blocks may."""
    S, H = 7, 6
    arguments = [
        jax.ShapeDtypeStruct(x.shape, np.float32) for x in inputs(np.random.default_rng(0), 2, S, heads=(1,) * 6, H=H)
    ]
    y = jax.eval_shape(jax_impl.gru, *arguments)
    jaxpr = jax.make_jaxpr(lambda x, dy: pull_back(jax_impl.gru, x, dy))(arguments, y).jaxpr
    outer = loop_bodies(jaxpr)
    over_steps = [inner for body in outer for inner in loop_bodies(body) or [body]]
    assert (len(outer), len(over_steps)) == (2, 2)
    for body in over_steps:
        assert not {shape for shape in shapes_in(body) if shape[-2:] in ((H, H), (H, 2 * H)) and len(shape) > 2}


def loop_bodies(jaxpr) -> list:
    bodies = []
    for equation in jaxpr.eqns:
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                bodies += [inner] if equation.primitive.name in ("scan", "while") else loop_bodies(inner)
    return bodies


def test_a_traced_packing_that_claims_more_steps_than_there_are_takes_no_more(monkeypatch):
    taken = []

    def counted(name):
        step = getattr(packed, name)

        def one(*arguments):
            jax.debug.callback(lambda: taken.append(name))
            return step(*arguments)

        monkeypatch.setattr(packed, name, one)

    counted("step")
    counted("step_back")
    T, H = 10, 3
    x, W = jnp.ones((T, 1, H)), jnp.ones((1, H, H))

    @jax.jit
    def gradient(x, cu_seqlens):
        def loss(x):
            y, last = jax_impl.gru(x, W, x, W, x, W, cu_seqlens=cu_seqlens)
            return y.sum() + last.sum()

        return jax.grad(loss)(x)

    for bounds in ([0, 10**6, 10], [0, 4, T]):
        taken.clear()
        dx = gradient(x, jnp.array(bounds))
        jax.effects_barrier()
        assert np.isfinite(dx).all() and dx.shape == x.shape
        longest = min(max(np.diff(bounds)), T)
        assert taken.count("step") == taken.count("step_back") == longest
