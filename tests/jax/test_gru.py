"""GRU: packed sequences in tiles, traced packing, and the products and steps that are computed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jax_impl
import reference
from jax_impl._gru import api, packed
from tests.both import with_jax
from tests.both.tools import compare, gru, gru_inputs, gru_reference
from tests.jax.tools import assert_close, like, normal, pull_back, shapes_in

HEADS = (6, 1, 2, 3, 1, 6)
PACKING = np.array([0, 0, 3, 20, 20, 31, 32])


def inputs(rng, *tokens: int, heads=HEADS, H=5, dtype=np.float64):
    return [x.astype(dtype) for x in gru_inputs(rng, *tokens, heads=heads, H=H)]


def state(rng, B, H=5, dtype=np.float64):
    return normal(rng, B, max(HEADS), H, dtype=dtype)


def test_many_packed_sequences_in_tiles(monkeypatch):
    """Loops of 8 sequences at a time, then of 8 and of 2 at once, over 40 sequences of which some are empty."""
    monkeypatch.setattr(api, "TOGETHER_ON_CPU", 8)
    rng = np.random.default_rng(7)
    lengths = np.concatenate([rng.integers(0, 4, 30), rng.integers(4, 9, 9), [20]])
    packing = np.cumsum([0, *rng.permutation(lengths)])
    arguments = (*inputs(rng, int(packing[-1]), H=2), state(rng, 40, H=2))
    options = {"gradient_clipping": 0.1, "cu_seqlens": packing}
    compare(with_jax, gru(with_jax, **options), partial(gru_reference, **options), arguments)


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
