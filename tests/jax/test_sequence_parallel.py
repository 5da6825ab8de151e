"""The mLSTM with steps sharded over a mesh axis: meshes, transformations, and bytes between devices.

The law `mlstm.sharding_over_steps` compares any sequences and packings with the specification.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, pull_back

B, N, K, V = 2, 2, 3, 4


def mesh_of(devices):
    return jax.make_mesh((devices,), ("sp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


@pytest.fixture
def float64():
    jax.config.update("jax_enable_x64", True)


def tokens(rng, *lead, dtype: Any = np.float64):
    return [jnp.asarray(x) for x in mlstm_inputs(rng, *lead, N=N, K=K, V=V, dtype=dtype)]


def state(rng, B=B, dtype: Any = np.float64):
    return jax_impl.MLSTMState(*map(jnp.asarray, mlstm_state(rng, B, N, K=K, V=V, dtype=dtype)))


def sharded(devices, cu_seqlens=None, **options):
    """``(tokens, initial state) → (h, state)``, as `jax_impl.mlstm` with these options, on so many devices."""
    steps = P(None, "sp") if cu_seqlens is None else P("sp")

    def local(x, initial, cu_seqlens):
        return jax_impl.mlstm(
            *x, initial_state=initial, return_state=True, cu_seqlens=cu_seqlens, sequence_axis="sp", **options
        )

    mapped = jax.shard_map(local, mesh=mesh_of(devices), in_specs=([steps] * 5, P(), P()), out_specs=(steps, P()))
    return lambda x, initial: mapped(x, initial, cu_seqlens)


def whole(cu_seqlens=None, **options):
    def call(x, initial):
        return jax_impl.mlstm(*x, initial_state=initial, return_state=True, cu_seqlens=cu_seqlens, **options)

    return call


def assert_same(rng, one, other, arguments, tolerance=1e-11):
    """Two functions have the same results and gradients."""
    results, pulled = jax.vjp(jax.jit(other), *arguments)
    cotangents = like(rng, results)
    assert_close(pull_back(jax.jit(one), arguments, cotangents), (results, pulled(cotangents)), tolerance)


def test_nothing_flows_through_a_reset():
    """Not even roundoff."""
    rng = np.random.default_rng(4)
    x, initial = tokens(rng, 1, 24, dtype=np.float32), state(rng, 1, dtype=np.float32)
    x[4] = x[4].at[:, 10].set(-jnp.inf)
    results, pulled = jax.vjp(jax.jit(sharded(8)), x, initial)
    dh, dstate = like(rng, results)
    (_, dk, dv, di, df), dinitial = pulled((dh.at[:, :10].set(0), dstate))
    assert not any(part[:, :10].any() for part in (dk, dv, di)) and not df[:, :11].any()
    assert not any(part.any() for part in dinitial)
    assert all(part[:, 11:].all() for part in (dk, dv, di))


def test_a_nan_stays_in_its_sequence():
    """The second of three sequences lies on three devices; its values and cotangents spoil no other's."""
    rng = np.random.default_rng(5)
    cu_seqlens, own = jnp.array([0, 5, 14, 16]), slice(5, 14)
    clean, initial = tokens(rng, 16, dtype=np.float32), state(rng, 3, dtype=np.float32)
    function = jax.jit(sharded(4, cu_seqlens))
    results, pulled = jax.vjp(function, clean, initial)
    cotangents = like(rng, results)
    expected = results, pulled(cotangents)
    for name in range(6):
        x = [part.at[own].set(jnp.nan) if at == name else part for at, part in enumerate(clean)]
        dh, dstate = cotangents
        results, pulled = jax.vjp(function, x, initial)
        got = results, pulled((dh.at[own].set(jnp.nan) if name == 5 else dh, dstate))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            kept = np.ones(len(one), bool)
            kept[own if len(one) == 16 else 1] = False
            np.testing.assert_allclose(one[kept], other[kept], rtol=1e-5, atol=1e-5)


def test_checkpoint_and_a_second_axis(float64):
    """Sequences over one axis, steps over another, in a jitted call on sharded arrays, recomputed in the gradient."""
    rng = np.random.default_rng(6)
    mesh = jax.make_mesh((2, 4), ("dp", "sp"), axis_types=(AxisType.Auto,) * 2)
    steps, of_batch = P("dp", "sp"), P("dp")

    @jax.checkpoint
    def local(x, initial):
        return jax_impl.mlstm(*x, initial_state=initial, return_state=True, sequence_axis="sp")

    function = jax.shard_map(local, mesh=mesh, in_specs=([steps] * 5, of_batch), out_specs=(steps, of_batch))
    x, initial = tokens(rng, B, 8), state(rng)
    x = [jax.device_put(part, NamedSharding(mesh, steps)) for part in x]
    assert_same(rng, function, whole(), (x, initial))


def test_several_axes_count_as_one(float64):
    rng = np.random.default_rng(7)
    mesh = jax.make_mesh((2, 3), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])

    def local(x, initial):
        return jax_impl.mlstm(*x, initial_state=initial, return_state=True, sequence_axis=("a", "b"))

    steps = P(None, ("a", "b"))
    function = jax.shard_map(local, mesh=mesh, in_specs=([steps] * 5, P()), out_specs=(steps, P()))
    assert_same(rng, function, whole(), (tokens(rng, B, 12), state(rng)))


def collectives(lowered):
    """The numbers of elements of all collectives of a program, by name."""
    found = {}
    kinds = "collective-permute|all-reduce|all-gather|all-to-all|reduce-scatter"
    for results, name in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", lowered):
        for sizes in re.findall(r"\[([\d,]*)\]", results):
            found.setdefault(name, []).append(int(np.prod([int(size) for size in sizes.split(",") if size])))
    return found


@pytest.mark.grid
@pytest.mark.parametrize(("devices", "rounds", "packed"), [(2, 1, False), (8, 4, False), (4, 3, True)])
def test_what_crosses_the_wire(devices, rounds, packed):
    """One summary a round, whatever S is, and as much for the gradient; no collective at all of tokens."""
    counted = []
    for S in (16, 64):
        rng = np.random.default_rng(8)
        x = tokens(rng, *((S,) if packed else (B, S)), dtype=np.float32)
        cu_seqlens = jnp.array([0, 5, S]) if packed else None
        steps = P("sp") if packed else P(None, "sp")

        def local(x, cu_seqlens):
            return jax_impl.mlstm(*x, cu_seqlens=cu_seqlens, sequence_axis="sp")

        mapped = jax.shard_map(local, mesh=mesh_of(devices), in_specs=([steps] * 5, P()), out_specs=steps)
        function = functools.partial(lambda mapped, cu_seqlens, x: mapped(x, cu_seqlens), mapped, cu_seqlens)
        forward = jax.jit(function).lower(x).compile().as_text()
        both = jax.jit(lambda x, dh, function=function: jax.vjp(function, x)[1](dh)).lower(x, x[2]).compile().as_text()
        counted.append((collectives(forward), collectives(both)))
    summary = (1 if packed else B) * N * (K * V + K + 3)
    assert counted[0] == counted[1]
    forward, both = counted[0]
    assert forward == {"collective-permute": [summary] * rounds}
    assert both == {"collective-permute": [summary] * 2 * rounds}


def refusal(call, *, specs, check_vma=True, message):
    """The error of a call of ``mlstm`` inside a shard_map of four devices."""
    rng = np.random.default_rng(9)
    arrays = tokens(rng, B, 8, dtype=np.float32), state(rng, dtype=np.float32), jnp.array([0, 8])
    mapped = jax.shard_map(call, mesh=mesh_of(4), in_specs=specs, out_specs=P(), check_vma=check_vma)
    with pytest.raises(ValueError) as error:
        mapped(*arrays)
    assert str(error.value) == message


def test_refusals():
    steps = [P(None, "sp")] * 5
    call = functools.partial(jax_impl.mlstm, sequence_axis="sp")
    with pytest.raises(
        ValueError, match="mlstm: `sequence_axis` is 'sp'; expected an axis of the mesh: no axis at all"
    ):
        call(*tokens(np.random.default_rng(0), B, 4, dtype=np.float32))
    refusal(
        lambda x, *_: jax_impl.mlstm(*x, sequence_axis="tp"),
        specs=(steps, P(), P()),
        message="mlstm: `sequence_axis` is 'tp'; expected an axis of the mesh: 'sp'",
    )
    varies = "it to vary over 'sp', as in a shard_map that shards the steps, with check_vma=True"
    for specs, check_vma in ((P(), True), (steps, False)):
        refusal(
            lambda x, *_: call(*x),
            specs=(specs, P(), P()),
            check_vma=check_vma,
            message=f"mlstm: `q` is the same array on all devices of 'sp'; expected {varies}",
        )
    whole_sequences = "the same array on all devices: it belongs to the whole sequences"
    refusal(
        lambda x, initial, _: call(*x, initial_state=jax.lax.pcast(initial, "sp", to="varying")),
        specs=(steps, P(), P()),
        message=f"mlstm: `initial_state.C` is an array that varies over 'sp'; expected {whole_sequences}",
    )
    refusal(
        lambda x, _, bounds: call(*(y[0] for y in x), cu_seqlens=jax.lax.pcast(bounds, "sp", to="varying")),
        specs=(steps, P(), P()),
        message=f"mlstm: `cu_seqlens` is an array that varies over 'sp'; expected {whole_sequences}",
    )
    known: Any = np.array([0, 2])
    refusal(
        lambda x, *_: call(*(y[0] for y in x), cu_seqlens=known),
        specs=(steps, P(), P()),
        message="mlstm: `cu_seqlens` is an array that ends at 2; expected T=8 to match `q` of all shards",
    )
