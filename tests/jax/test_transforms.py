"""JAX's transformations in ways that no law tries: `shard_map`, export, gradients of maps, forward mode, precision."""

import functools
from importlib.util import find_spec

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, normal, pull_back

B, S = 8, 9


def mlstm(*x):
    h, last = jax_impl.mlstm(*x[:5], initial_state=x[5:], return_state=True, chunk_size=4)
    return h, tuple(last)


def step(*x):
    h, last = jax_impl.mlstm_step(*x[:5], x[5:])
    return h, tuple(last)


def gru(x, xf, xr, h, W, Wf, Wr):
    return jax_impl.gru(x, W, xf, Wf, xr, Wr, h, 0.5)


def fwbw(*x):
    h, last = jax_impl.mlstm_fwbw_custom_grad(
        dict(chunk_size=4, return_state=True, use_initial_state=True, keep_G=True, keep_c=True)
    )(*x)
    return h, tuple(last)


def delta(q, k, v, g, beta, S):
    return jax_impl.gated_delta_rule(q, k, v, g, beta, initial_state=S, qk_norm_eps=0.1, chunk_size=4)


def delta_step(q, k, v, g, beta, S):
    return jax_impl.gated_delta_step(q, k, v, g, beta, S, qk_norm_eps=0.1)


def mlstm_arguments(rng):
    return (*mlstm_inputs(rng, B, S, dtype=np.float32), *mlstm_state(rng, B, 3, dtype=np.float32))


def step_arguments(rng):
    return (*mlstm_inputs(rng, B, dtype=np.float32), *mlstm_state(rng, B, 3, dtype=np.float32))


def gru_arguments(rng):
    inputs = [normal(rng, B, S, heads, 5, dtype=np.float32) for heads in (2, 1, 4)]
    weights = [normal(rng, heads, 5, 5, dtype=np.float32) for heads in (1, 4, 2)]
    return (*inputs, normal(rng, B, 4, 5, dtype=np.float32), *weights)


def delta_arguments(rng, *tokens):
    shapes = ((2, 5), (1, 5), (4, 7), (2,), (4,))
    q, k, v, g, beta = (normal(rng, B, *tokens, *shape, dtype=np.float32) for shape in shapes)
    return q, k, v, -np.abs(g), np.abs(beta), normal(rng, B, 4, 5, 7, dtype=np.float32)


def fwbw_arguments(rng):
    return (
        *(normal(rng, B, S, width, dtype=np.float32) for width in (5, 5, 7)),
        *normal(rng, 2, B, S, dtype=np.float32),
        *mlstm_state(rng, B, dtype=np.float32),
    )


# Each with the number of arguments that have a batch axis; the rest are weights.
CASES = {
    "mlstm": (mlstm, mlstm_arguments, 8),
    "mlstm_step": (step, step_arguments, 8),
    "gru": (gru, gru_arguments, 4),
    "gated_delta_rule": (delta, lambda rng: delta_arguments(rng, S), 6),
    "gated_delta_step": (delta_step, delta_arguments, 6),
    "fwbw": (fwbw, fwbw_arguments, 8),
}


@functools.cache
def plain(name):
    """A call and its cotangents, with result and gradients from one plain pull-back."""
    function, make, batched = CASES[name]
    rng = np.random.default_rng(0)
    arguments = tuple(jnp.asarray(x) for x in make(rng))
    cotangents = like(rng, jax.eval_shape(function, *arguments))
    result, gradients = pull_back(function, arguments, cotangents)
    return function, batched, arguments, cotangents, result, gradients


each = pytest.mark.parametrize("name", CASES)


@pytest.mark.parametrize("gradient_inside", [True, False])
@each
def test_shard_map(name, gradient_inside):
    """The batch sharded over a mesh axis, weights replicated, varying axes checked; gradients inside and outside."""
    function, batched, arguments, cotangents, result, gradients = plain(name)
    mesh = jax.make_mesh((4, 2), ("data", "other"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("data"),) * batched + (P(),) * (len(arguments) - batched)

    def both(*x):
        return pull_back(function, x[: len(arguments)], x[len(arguments)])

    if gradient_inside:
        sharded = jax.shard_map(
            both, mesh=mesh, in_specs=(*specs, P("data")), out_specs=(P("data"), specs), check_vma=True
        )
        got, got_gradients = jax.jit(sharded)(*arguments, cotangents)
    else:
        sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=True)
        got, got_gradients = jax.jit(lambda x, dy: pull_back(sharded, x, dy))(arguments, cotangents)
    assert_close(got, result, 1e-5)
    assert_close(got_gradients, gradients, 1e-5)


def test_shard_map_with_no_state_and_replicated_values():
    """Whatever varies and whatever is replicated: here only the gates vary, or only one weight; no state is given."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(1)
    q, k, v, i, f = (jnp.asarray(x) for x in mlstm_inputs(rng, 2, S, dtype=np.float32))
    gates = jnp.stack([i + shard for shard in range(4)])

    def loss(q, gates):
        return jnp.sum(jax_impl.mlstm(q, k, v, gates[0], f) ** 2)[None]

    sharded = jax.shard_map(loss, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    got = jax.jit(jax.grad(lambda q, gates: sharded(q, gates).sum(), argnums=(0, 1)))(q, gates)
    expected = jax.grad(lambda q, gates: sum(loss(q, g[None])[0] for g in gates), argnums=(0, 1))(q, gates)
    assert_close(got, expected, 1e-5)

    x, xf, xr, _, W, Wf, Wr = (jnp.asarray(x) for x in gru_arguments(rng))
    weights = jnp.stack([W * shard for shard in range(1, 5)])
    packing = jnp.array([0, 0, 4, 9], jnp.int32)

    def packed(x, weights):
        y, last = jax_impl.gru(x[0], weights[0], xf[0], Wf, xr[0], Wr, cu_seqlens=packing)
        return (jnp.sum(y**2) + jnp.sum(last))[None]

    sharded = jax.shard_map(packed, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    got = jax.jit(jax.grad(lambda x, w: sharded(x, w).sum(), argnums=(0, 1)))(x, weights)
    expected = jax.grad(lambda x, w: sum(packed(x, one[None])[0] for one in w), argnums=(0, 1))(x, weights)
    assert_close(got, expected, 1e-5)


def test_shard_map_packed_mlstm():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(2)
    arguments = [jnp.asarray(x) for x in mlstm_inputs(rng, 2, S, dtype=np.float32)]
    packings = jnp.array([[0, 4, 4, 9], [0, 1, 8, 9]], jnp.int32)

    def packed(cu, *x):
        h, last = jax_impl.mlstm(*(part[0] for part in x), cu_seqlens=cu[0], return_state=True, chunk_size=4)
        return jax.tree.map(lambda part: part[None], (h, tuple(last)))

    sharded = jax.shard_map(packed, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    cotangents = like(rng, jax.eval_shape(sharded, packings, *arguments))
    got = jax.jit(lambda x, dy: pull_back(functools.partial(sharded, packings), x, dy))(arguments, cotangents)
    mapped = jax.vmap(lambda cu, *x: jax.tree.map(lambda y: y[0], packed(cu[None], *(part[None] for part in x))))
    expected = pull_back(functools.partial(mapped, packings), arguments, cotangents)
    assert_close(got, expected, 1e-5)


@each
def test_export_round_trip(name):
    """Lowered, and where JAX can (it needs flatbuffers) written and read again."""
    function, _, arguments, cotangents, result, gradients = plain(name)
    both = jax.jit(lambda x, dy: pull_back(function, x, dy))
    exported = jax.export.export(both)(arguments, cotangents)
    if find_spec("flatbuffers"):
        exported = jax.export.deserialize(exported.serialize())
    got, got_gradients = exported.call(arguments, cotangents)
    assert_close(got, result, 1e-5)
    assert_close(got_gradients, gradients, 1e-5)


SYMBOLIC = {
    "mlstm": ["b, s"] * 5 + ["b"] * 3,
    "gru": ["b, s"] * 3 + ["b"] + [""] * 3,
    "gated_delta_rule": ["b, s"] * 5 + ["b"],
}
"""The symbols of the axes of every argument."""


def symbolic(arrays, axes):
    """The shapes of the arrays, with symbols for their first axes."""
    scope = jax.export.SymbolicScope()
    shapes = []
    for x, letters in zip(arrays, axes, strict=True):
        named = [letter for letter in letters.split(", ") if letter]
        text = ", ".join([*named, *("_" for _ in x.shape[len(named) :])])
        shape = jax.export.symbolic_shape(text, scope=scope, like=x.shape) if named else x.shape
        shapes.append(jax.ShapeDtypeStruct(shape, x.dtype))
    return shapes


@pytest.mark.parametrize("name", SYMBOLIC)
def test_export_with_any_batch_and_length(name):
    """Gradients too, at a length of several chunks and blocks."""
    function, _, arguments, _, _, _ = plain(name)
    arguments = [
        jnp.concatenate([x[:3]] * 5, axis=1) if "s" in axes else x[:3] if axes else x
        for x, axes in zip(arguments, SYMBOLIC[name], strict=True)
    ]

    def both(*x):
        result, pull = jax.vjp(function, *x)
        return result, pull(jax.tree.map(lambda y: jnp.cos(y).astype(y.dtype), result))

    exported = jax.export.export(jax.jit(both))(*symbolic(arguments, SYMBOLIC[name]))
    assert_close(exported.call(*arguments), both(*arguments), 1e-5)


def test_every_other_operation_is_exported_with_any_length():
    """Single steps, the fwbw interface, packed tokens, scans and decay matrices, with their gradients."""
    rng = np.random.default_rng(0)
    bounds = np.array([0, 4, 9], np.int32)
    packed, gru_packed = mlstm_inputs(rng, 9, dtype=np.float32), [x[0] for x in gru_arguments(rng)[:3]]
    weights, gates = gru_arguments(rng)[4:], normal(rng, 2, S, 1, dtype=np.float32)
    for function, arrays, axes in (
        (lambda bounds, *x: jax_impl.mlstm(*x, cu_seqlens=bounds), [bounds, *packed], [""] + ["t"] * 5),
        (
            lambda bounds, x, xf, xr, *w: jax_impl.gru(x, w[0], xf, w[1], xr, w[2], cu_seqlens=bounds)[0],
            [bounds, *gru_packed, *weights],
            [""] + ["t"] * 3 + [""] * 3,
        ),
        (lambda *x: step(*x)[0], step_arguments(rng), ["b"] * 8),
        (lambda *x: delta_step(*x)[0], delta_arguments(rng), ["b"] * 6),
        (
            lambda bounds, *x: jax_impl.gated_delta_rule(*x, cu_seqlens=bounds)[0],
            [bounds, *(x[0] for x in delta_arguments(rng, 9)[:5])],
            [""] + ["t"] * 5,
        ),
        (lambda *x: fwbw(*x)[0], fwbw_arguments(rng), ["b, s"] * 5 + ["b"] * 3),
        (jax_impl.dtilde_matrix, [gates, gates], ["b, s"] * 2),
        (jax_impl.causal_forget_matrix, [gates[..., 0]], ["b, s"]),
        (jax_impl.rev_cumsum, [gates[..., 0]], ["b, s"]),
        (jax_impl.rev_cumsum_off, [gates[..., 0]], ["b, s"]),
    ):
        floating = [number for number, x in enumerate(arrays) if x.dtype == np.float32]

        def loss(*x, function=function):
            return jnp.sum(jnp.nan_to_num(function(*x)))

        shapes = symbolic(arrays, axes)
        assert jax.export.export(jax.jit(jax.grad(loss, floating)))(*shapes).out_avals


PUBLIC = {"fwbw": "mlstm_fwbw_custom_grad"}
REFUSED = "forward-mode and second derivatives are not available on any backend; its gradient is written by hand"


@pytest.mark.parametrize("name", ["gated_delta_rule", "gated_delta_step"])
def test_forward_mode(name):
    """The derivative in a direction is the product of the gradient with it, and may be differentiated."""
    function, _, arguments, cotangents, _, gradients = plain(name)

    def along(*x):
        tangents = jax.jvp(function, x, arguments)[1]
        return sum(jnp.vdot(dy, t) for dy, t in zip(cotangents, tangents, strict=True))

    expected = sum(jnp.vdot(dx, x) for dx, x in zip(gradients, arguments, strict=True))
    assert_close(along(*arguments), expected, 1e-4)
    assert all(jnp.isfinite(dx).all() for dx in jax.grad(along, range(len(arguments)))(*arguments))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("gated_delta")])
def test_forward_mode_raises_by_name(name):
    function, _, arguments, *_ = plain(name)
    refused = pytest.raises(NotImplementedError, match=f"^{PUBLIC.get(name, name)}: {REFUSED}")
    with refused:
        jax.jvp(function, arguments, arguments)
    with refused:
        jax.linearize(jax.jit(function), *arguments)[1](*arguments)
    with refused:
        jax.jit(jax.jacfwd(function))(*arguments)
    with refused:
        jax.vmap(lambda x: jax.jvp(function, x, x))(jax.tree.map(lambda x: x[None], arguments))


@each
def test_gradient_of_vmap(name):
    """Forward mode is refused by a rule on tangents, which no mapped gradient and no gradient of a map may meet."""
    function, _, arguments, cotangents, _, gradients = plain(name)
    lanes = jax.tree.map(lambda x: x[None, None], (arguments, cotangents))
    _, of_map = pull_back(jax.vmap(jax.vmap(function)), *lanes)

    def in_a_loop(*x):
        return jax.lax.scan(lambda _, x: (None, jax.checkpoint(function)(*x)), None, x)[1]

    _, of_loop = jax.vmap(lambda x, dy: pull_back(in_a_loop, x, dy))(*lanes)
    for got in (of_map, of_loop):
        assert_close(jax.tree.map(lambda x: x[0, 0], got), gradients, 1e-5)


def precisions(jaxpr) -> set:
    """The precision of every product in a jaxpr."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.add(str(equation.params["precision"]))
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                found |= precisions(inner)
    return found


@each
def test_products_are_float32_unless_the_user_says_otherwise(name):
    function, _, arguments, cotangents, *_ = plain(name)

    def found():
        return precisions(jax.make_jaxpr(lambda x, dy: pull_back(function, x, dy))(arguments, cotangents).jaxpr)

    assert found() == {"(Precision.HIGHEST, Precision.HIGHEST)"}
    with jax.default_matmul_precision("bfloat16"):
        # JAX differentiates a triangular solve in float32 whatever the user says.
        solves = {"(Precision.HIGHEST, Precision.HIGHEST)"} if name == "gated_delta_rule" else set()
        assert found() - solves == {"(Precision.DEFAULT, Precision.DEFAULT)"}


def test_an_exported_function_may_take_and_return_a_state():
    rng = np.random.default_rng(0)
    *x, C, n, m = step_arguments(rng)
    exported = jax.export.export(jax.jit(jax_impl.mlstm_step))(*x, jax_impl.MLSTMState(C, n, m))
    again = jax.export.deserialize(exported.serialize())
    h, state = again.call(*x, jax_impl.MLSTMState(C, n, m))
    assert type(state) is jax_impl.MLSTMState
    assert_close((h, state), jax_impl.mlstm_step(*x, jax_impl.MLSTMState(C, n, m)), 1e-6)
