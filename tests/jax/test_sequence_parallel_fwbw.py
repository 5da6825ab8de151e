"""The fwbw interface with steps sharded over a mesh axis: equal to the unsharded call, by hand and by `jax.vjp`."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.test_sequence_parallel import float64, mesh_of  # noqa: F401
from tests.jax.tools import assert_close, like, normal, pull_back

B, T, K, V = 2, 16, 3, 4
KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")
STEPS, WHOLE = P(None, "sp"), P()


def inputs(rng, *lead, dtype: Any = np.float64, T=T, resets=True):
    """q to f, with gates of both forms and hard resets among them, and a state."""
    shapes = ((B, T, K), (B, T, K), (B, T, V), (B, T, 1), (B, T))
    q, k, v, i, f = (normal(rng, *lead, *shape, dtype=dtype) for shape in shapes)
    if resets:
        f = jnp.where(rng.random(f.shape) < 0.2, -jnp.inf, f)
    return [q, k, v, i, f], [normal(rng, *lead, B, *shape, dtype=dtype) for shape in ((K, V), (K,), ())]


def configuration(**fields):
    return {"return_state": True, "use_initial_state": True, "stabilize_correctly": True, "chunk_size": 3, **fields}


def mapped(function, devices, out_specs):
    """A function of tokens and states, with the tokens' steps sharded over so many devices."""
    return jax.shard_map(function, mesh=mesh_of(devices), in_specs=([STEPS] * 5, WHOLE), out_specs=out_specs)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (8, {}),
        (2, {**dict.fromkeys(KEEPS, True), "stabilize_correctly": False, "chunk_size": None}),
        (4, {"use_initial_state": False, "return_state": False}),
    ],
)
def test_sharded_is_whole(float64, devices, changes):  # noqa: F811
    """Results and gradients, of the differentiated function and of both passes by hand."""
    config = configuration(**changes)
    rng = np.random.default_rng(devices)
    tokens, state = inputs(rng)
    states = state if config["use_initial_state"] else []
    function = jax_impl.mlstm_fwbw_custom_grad(config)
    results, pulled = jax.vjp(lambda x, s: function(*x, *s), tokens, states)
    cotangents = like(rng, results)
    expected = results, pulled(cotangents)

    out = (STEPS, WHOLE) if config["return_state"] else STEPS
    shared = jax_impl.mlstm_fwbw_custom_grad(config, sequence_axis="sp")
    sharded = mapped(lambda x, s: shared(*x, *s), devices, out)
    assert_close(pull_back(jax.jit(sharded), (tokens, states), cotangents), expected, 1e-11)

    def by_hand(x, states, dh, dlast):
        result, ctx = jax_impl.fwbw_forward(*x[:5], config, *states, sequence_axis="sp")
        gradients = jax_impl.fwbw_backward(ctx, dh, config, *dlast)
        return result, [*gradients[:5]], [x for x in gradients[5:] if x is not None]

    dh, dlast = cotangents if config["return_state"] else (cotangents, ())
    passes = jax.shard_map(
        by_hand,
        mesh=mesh_of(devices),
        in_specs=([STEPS] * 5, WHOLE, STEPS, WHOLE),
        out_specs=(out, [STEPS] * 5, WHOLE),
    )
    result, dtokens, dstates = jax.jit(passes)(tokens, states, dh, dlast)
    assert_close((result, (dtokens, dstates)), expected, 1e-11)


def test_the_module(float64):  # noqa: F811
    rng, config = np.random.default_rng(4), configuration(return_state=False)
    tokens, state = inputs(rng)
    layer = jax_impl.mLSTMBackendFwbw(config)
    call = functools.partial(layer, return_last_states=True, sequence_axis="sp")
    sharded = mapped(lambda x, s: call(*x, *s), 2, (STEPS, WHOLE))
    assert_close(jax.jit(sharded)(tokens, state), layer(*tokens, *state, return_last_states=True), 1e-12)


def test_a_state_that_is_left_out_is_zeros(float64):  # noqa: F811
    """Its gradient is that of zeros, the same on every device; sequences are sharded over a second axis."""
    rng = np.random.default_rng(0)
    tokens, state = inputs(rng)
    config, zeros = configuration(), jax.tree.map(jnp.zeros_like, state)
    (_, last), ctx = jax_impl.fwbw_forward(*tokens[:5], config, *zeros)
    dh, dlast = like(rng, (tokens[2], last))
    expected = jax_impl.fwbw_backward(ctx, dh, config, *dlast)
    mesh = jax.make_mesh((2, 4), ("dp", "sp"), axis_types=(AxisType.Auto,) * 2)

    def by_hand(x, dh, dlast):
        _, ctx = jax_impl.fwbw_forward(*x[:5], config, sequence_axis="sp")
        return jax_impl.fwbw_backward(ctx, dh, config, *dlast)

    steps, whole = P("dp", "sp"), P("dp")
    passes = jax.shard_map(
        by_hand, mesh=mesh, in_specs=([steps] * 5, steps, whole), out_specs=(*[steps] * 5, *[whole] * 3)
    )
    assert_close(jax.jit(passes)(tokens, dh, dlast), expected, 1e-11)


def test_sequences_over_an_explicit_axis(float64):  # noqa: F811
    """Of a mesh whose axes are all manual, by `jax.vjp`; and one that is explicit inside `shard_map`, where JAX itself
    cannot differentiate: values, and gradients by hand."""
    rng, config = np.random.default_rng(5), configuration()
    tokens, state = inputs(rng)
    mesh = jax.make_mesh((2, 4), ("dp", "sp"), axis_types=(AxisType.Explicit,) * 2)

    def by_hand(x, state, dh, dlast, axis=None):
        result, ctx = jax_impl.fwbw_forward(*x[:5], config, *state, sequence_axis=axis)
        return result, jax_impl.fwbw_backward(ctx, dh, config, *dlast)

    def plain(x, state, axis=None):
        q, k, v, i, f = (part.reshape(*part.shape[:2], 1, -1) for part in x)
        state = jax_impl.MLSTMState(*(part[:, None] for part in state))
        options = {"initial_state": state, "return_state": True, "sequence_axis": axis}
        return jax_impl.mlstm(q, k, v, i[..., 0], f[..., 0], **options)

    def custom(x, state, axis=None):
        return jax_impl.mlstm_fwbw_custom_grad(config, sequence_axis=axis)(*x, *state)

    def place(tokens, states):
        parts = (tokens, P("dp", "sp")), (states, P("dp"))
        return tuple(jax.device_put(part, NamedSharding(mesh, spec)) for part, spec in parts)

    results, pulled = jax.vjp(custom, tokens, state)
    cotangents = like(rng, results)
    expected = results, pulled(cotangents)
    of_plain, of_hand = plain(tokens, state), by_hand(tokens, state, *cotangents)
    placed, given = place(tokens, state), place(*cotangents)
    steps, whole = P("dp", "sp"), P("dp")
    axis = {"axis": "sp"}
    with jax.set_mesh(mesh):
        manual = jax.shard_map(
            functools.partial(custom, **axis), in_specs=([steps] * 5, whole), out_specs=(steps, whole)
        )
        found = pull_back(jax.jit(manual), placed, given)
        assert_close(jax.tree.map(np.asarray, found), expected, 1e-11)
        partly = functools.partial(jax.shard_map, axis_names={"sp"})
        inputs_of_all = [STEPS] * 5, WHOLE
        shared = partly(functools.partial(plain, **axis), in_specs=inputs_of_all, out_specs=(STEPS, WHOLE))
        assert_close(jax.tree.map(np.asarray, jax.jit(shared)(*placed)), of_plain, 1e-11)
        passes = partly(
            functools.partial(by_hand, **axis),
            in_specs=(*inputs_of_all, STEPS, WHOLE),
            out_specs=((STEPS, WHOLE), (*[STEPS] * 5, *[WHOLE] * 3)),
        )
        assert_close(jax.tree.map(np.asarray, jax.jit(passes)(*placed, *given)), of_hand, 1e-11)


def test_heads_by_vmap(float64):  # noqa: F811
    rng = np.random.default_rng(1)
    (tokens, state), config = inputs(rng, 3), configuration()
    function = jax_impl.mlstm_fwbw_custom_grad(config, sequence_axis="sp")
    one = jax.shard_map(
        lambda x, s: jax.vmap(function)(*x, *s),
        mesh=mesh_of(4),
        in_specs=([P(None, None, "sp")] * 5, WHOLE),
        out_specs=(P(None, None, "sp"), WHOLE),
    )
    whole = jax.vmap(jax_impl.mlstm_fwbw_custom_grad(config))
    results, pulled = jax.vjp(lambda x, s: whole(*x, *s), tokens, state)
    cotangents = like(rng, results)
    assert_close(pull_back(jax.jit(one), (tokens, state), cotangents), (results, pulled(cotangents)), 1e-11)


def test_what_crosses_the_wire():
    """As for `mlstm`: a summary a round, and as much for the gradient; by hand, the forward messages once more."""
    rng, config = np.random.default_rng(2), configuration(return_state=False, use_initial_state=False)
    tokens, _ = inputs(rng, dtype=np.float32)
    summary, rounds = B * (K * V + K + 3), 3
    function = jax_impl.mlstm_fwbw_custom_grad(config, sequence_axis="sp")

    def by_hand(x, dh):
        h, ctx = jax_impl.fwbw_forward(*x[:5], config, sequence_axis="sp")
        return h, jax_impl.fwbw_backward(ctx, dh, config)

    in_specs = ([STEPS] * 5, STEPS)
    of_vjp = jax.shard_map(
        lambda x, dh: jax.vjp(function, *x)[1](dh), mesh=mesh_of(4), in_specs=in_specs, out_specs=(STEPS,) * 5
    )
    gradients = (*[STEPS] * 5, None, None, None)
    separate = jax.shard_map(by_hand, mesh=mesh_of(4), in_specs=in_specs, out_specs=(STEPS, gradients))
    for passes, messages in ((of_vjp, 2 * rounds), (separate, 3 * rounds)):
        program = str(jax.make_jaxpr(passes)(tokens, tokens[2]))
        sent = re.findall(r":f32\[([\d,]*)\](?:\{\S*\})? = (ppermute|psum\w*|all_gather|all_to_all)\[", program)
        assert [name for _, name in sent] == ["ppermute"] * messages
        assert {math.prod(map(int, sizes.split(","))) for sizes, _ in sent} == {summary}


@pytest.mark.parametrize("name", ["initial_C", "dn_last", "absent axis", "outside", "backward outside", "unsharded"])
def test_refusals(name):
    tokens, state = inputs(np.random.default_rng(3), dtype=np.float32)
    config = configuration()
    whole_sequences = "the same array on all devices: it belongs to the whole sequences"
    expected = {
        "initial_C": f"fwbw_forward: `initial_C` is an array that varies over 'sp'; expected {whole_sequences}",
        "dn_last": f"fwbw_backward: `dn_last` is an array that varies over 'sp'; expected {whole_sequences}",
        "absent axis": "fwbw_forward: `sequence_axis` is 'tp'; expected an axis of the mesh: 'sp'",
        "outside": "fwbw_forward: `sequence_axis` is 'sp'; expected an axis of the mesh: no axis at all",
        "backward outside": "fwbw_backward: `ctx.sequence_axis` is 'sp'; expected an axis of the mesh: no axis at all",
        "unsharded": "fwbw_forward: `q` is the same array on all devices of 'sp'; expected it to vary over 'sp', as in "
        "a shard_map that shards the steps, with check_vma=True",
    }

    def call(x, s):
        if name == "initial_C":
            s = jax.lax.pcast(s, "sp", to="varying")
        _, ctx = jax_impl.fwbw_forward(*x[:5], config, *s, sequence_axis="tp" if name == "absent axis" else "sp")
        dn = jax.lax.pcast(s[1], "sp", to="varying") if name == "dn_last" else None
        return jax_impl.fwbw_backward(ctx, x[2], config, dn_last=dn)[0]

    with pytest.raises(ValueError) as error:
        if name == "outside":
            jax_impl.mlstm_fwbw_custom_grad(config, sequence_axis="sp")(*tokens, *state)
        elif name == "backward outside":
            _, ctx = jax_impl.fwbw_forward(*tokens[:5], config, *state)
            jax_impl.fwbw_backward(dataclasses.replace(ctx, sequence_axis="sp"), tokens[2], config)
        elif name == "unsharded":
            jax.shard_map(call, mesh=mesh_of(4), in_specs=(WHOLE, WHOLE), out_specs=WHOLE)(tokens, state)
        else:
            mapped(call, 4, STEPS)(tokens, state)
    assert str(error.value) == expected[name]
