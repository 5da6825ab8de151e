"""JAX's transformations with Pallas kernels inside: values under the GPU interpreter, programs lowered for H100s.

The interpreter cannot do two of them, for reasons of its own. It runs a kernel by ordered callbacks, which
`jax.checkpoint` refuses: shown with a kernel that is not ours, then lifted for ours. On several devices its threads
meet at barriers that XLA on a CPU does not always let all of them reach: there values are those of a mesh of one
device, and the program for several is lowered.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_impl
from jax_impl import _pallas
from tests.jax.kernels.tools import needs_mosaic, only_interpreted, products, shape
from tests.jax.tools import assert_close, like, mlstm_inputs, mlstm_state, normal, pull_back

pytestmark = needs_mosaic
B, S = 2, 3


def mlstm(backend, *x):
    h, last = jax_impl.mlstm(*x[:5], initial_state=x[5:], return_state=True, kernel_backend=backend)
    return h, tuple(last)


def step(backend, *x):
    h, last = jax_impl.mlstm_step(*x[:5], x[5:], kernel_backend=backend)
    return h, tuple(last)


def gru(backend, x, xf, xr, h, W, Wf, Wr):
    return jax_impl.gru(x, W, xf, Wf, xr, Wr, h, kernel_backend=backend)


def arguments(name, rng, B=B, S=S, K=3, V=2):
    """The arguments of a call, and how many of them have a batch axis."""
    if name == "gru":
        inputs = [normal(rng, B, S, 1, K, dtype=np.float32) for _ in "xfr"]
        return (*inputs, normal(rng, B, 1, K, dtype=np.float32), *normal(rng, 3, 1, K, K, dtype=np.float32)), 4
    tokens, sizes = ((B,) if name == "mlstm_step" else (B, S)), {"K": K, "V": V, "dtype": np.float32}
    return (*mlstm_inputs(rng, *tokens, N=1, **sizes), *mlstm_state(rng, B, 1, **sizes)), 8


CASES = {"mlstm": mlstm, "mlstm_step": step, "gru": gru}
each = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv(_pallas.INTERPRET, "1")


@functools.cache
def plain(name):
    """A call of the kernels and its cotangents, with what XLA's backend says of both passes."""
    rng = np.random.default_rng(0)
    x, batched = arguments(name, rng)
    x = tuple(jnp.asarray(part) for part in x)
    cotangents = like(rng, jax.eval_shape(functools.partial(CASES[name], "xla"), *x))
    expected = pull_back(functools.partial(CASES[name], "xla"), x, cotangents)
    return functools.partial(CASES[name], "pallas"), batched, x, cotangents, expected


@each
def test_vmap_of_grad_under_jit(name):
    function, batched, x, cotangents, expected = plain(name)
    lanes = (*(part[:, None] for part in x[:batched]), *x[batched:])
    axes = (0,) * batched + (None,) * (len(x) - batched)
    mapped = jax.jit(jax.vmap(lambda x, dy: pull_back(function, x, dy), in_axes=(axes, 0)))
    result, gradients = mapped(lanes, jax.tree.map(lambda part: part[:, None], cotangents))
    assert_close(jax.tree.map(lambda part: part[:, 0], result), expected[0], 1e-5)
    assert_close([part[:, 0] for part in gradients[:batched]], expected[1][:batched], 1e-5)
    assert_close([part.sum(axis=0) for part in gradients[batched:]], expected[1][batched:], 1e-5)


@each
def test_forward_mode_and_second_derivatives_raise(name):
    function, _, x, *_ = plain(name)
    with pytest.raises(NotImplementedError, match=f"^{name}: forward-mode and second derivatives"):
        jax.jvp(function, x, x)
    gradient = jax.grad(lambda q: jnp.sum(function(q, *x[1:])[0] ** 2))
    with pytest.raises(NotImplementedError, match=f"^{name}: forward-mode and second derivatives"):
        jax.eval_shape(jax.grad(lambda q: jnp.sum(gradient(q))), x[0])


def copied(x):
    """A copy by a kernel of no concern to us: TMA into shared memory and out again."""
    plgpu = _pallas.pallas().plgpu

    def kernel(source, to, tile, barrier):
        plgpu.copy_gmem_to_smem(source, tile, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(tile, to)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=jax.typeof(x).manual_axis_type),
        scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()],
        grid=(1,),
        grid_names=("block",),
        interpret=plgpu.InterpretGPUParams(),
    )(x)


@only_interpreted
def test_the_interpreter_cannot_be_checkpointed():
    """Where this fails, JAX can, and the tests below no longer need to lift it."""
    own = jax.custom_vjp(copied)
    own.defvjp(lambda x: (copied(x), None), lambda _, dy: (dy,))
    with pytest.raises(NotImplementedError, match="Effects not supported"):
        jax.jit(jax.grad(lambda x: jnp.sum(jax.checkpoint(own)(x))))(jnp.ones(128))


@each
def test_checkpoint(name):
    """With ordered callbacks allowed: a kernel has no effect but its result, so it may run twice."""
    from jax._src import callback, effects

    allowed = effects.remat_allowed_effects
    allowed.add_type(callback.OrderedIOEffect)
    try:
        function, _, x, cotangents, expected = plain(name)
        got = jax.jit(lambda x, dy: pull_back(jax.checkpoint(function), x, dy))(x, cotangents)
    finally:
        allowed._effect_types.remove(callback.OrderedIOEffect)
    assert_close(got, expected, 1e-5)


@each
def test_shard_map(name):
    """On one device: on two the interpreter's threads wait for each other, and some of the time for ever."""
    function, batched, x, cotangents, expected = plain(name)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = (P("data"),) * batched + (P(),) * (len(x) - batched)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("data"))
    got = jax.jit(lambda x, dy: pull_back(sharded, x, dy))(x, cotangents)
    assert_close(got, expected, 1e-5)


def shards_of_steps(mesh):
    """The mLSTM, with an initial state, whose steps are sharded over the mesh."""

    def call(*x):
        h, last = jax_impl.mlstm(
            *x[:5], initial_state=x[5:], return_state=True, kernel_backend="pallas", sequence_axis="data"
        )
        return h, tuple(last)

    steps = P(None, "data")
    return jax.shard_map(call, mesh=mesh, in_specs=(steps,) * 5 + (P(),) * 3, out_specs=(steps, P()))


def test_shards_of_steps():
    _, _, x, cotangents, expected = plain("mlstm")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    got = jax.jit(lambda x, dy: pull_back(shards_of_steps(mesh), x, dy))(x, cotangents)
    assert_close(got, expected, 1e-5)


HOPPER = dict(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")


def exported(function, devices, name, *, dtype=jnp.float32):
    """``function(call)`` of both passes, lowered for so many H100s that are not there, written and read again."""
    call = functools.partial(CASES[name], "pallas")
    mesh = jax.sharding.AbstractMesh(
        (devices,), ("data",), axis_types=(AxisType.Auto,), abstract_device=jax.sharding.AbstractDevice(**HOPPER)
    )
    x, batched = arguments(name, np.random.default_rng(0), B=4, S=70, K=64, V=64)
    specs = (P("data"),) * batched + (P(),) * (len(x) - batched)

    def placed(part, spec):
        return jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=NamedSharding(mesh, spec))

    with jax.sharding.use_abstract_mesh(mesh):
        cotangents = jax.tree.map(lambda of: placed(of, P("data")), jax.eval_shape(call, *map(shape_of, x)))
        program = jax.jit(lambda x, dy: pull_back(function(call, mesh, specs), x, dy))
        unchecked = [export.DisabledSafetyCheck.custom_call("mosaic_gpu_v2")]
        result = export.export(program, platforms=["cuda"], disabled_checks=unchecked)(
            tuple(map(placed, x, specs)), cotangents
        )
    return export.deserialize(result.serialize())


def shape_of(x):
    return shape(*x.shape, dtype=x.dtype)


def kernels(module: export.Exported) -> int:
    return module.mlir_module().count("@mosaic_gpu_v2(")


@pytest.mark.parametrize(("name", "devices"), [("mlstm", 2), ("mlstm_step", 4), ("gru", 2)])
def test_shard_map_lowers_for_several_gpus(name, devices):
    def sharded(call, mesh, specs):
        return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=P("data"))

    module = exported(sharded, devices, name)
    assert module.nr_devices == devices
    assert kernels(module)


def test_shards_of_steps_lower_for_several_gpus():
    module = exported(lambda call, mesh, specs: shards_of_steps(mesh), 2, "mlstm")
    assert module.nr_devices == 2
    assert kernels(module)
    assert "collective_permute" in module.mlir_module()


@each
def test_checkpoint_lowers_with_the_forward_pass_twice(name):
    def counted(call, mesh, specs):
        forward.append(launches(call, *map(shape_of, arguments(name, np.random.default_rng(0))[0])))
        return jax.checkpoint(call)

    forward = []
    module = exported(counted, 1, name)
    assert products(module.mlir_module()) == {"f32.bf16.bf16"}
    assert kernels(module) >= 2 * forward[0] > 0


def launches(function, *shapes) -> int:
    return str(jax.make_jaxpr(function)(*shapes)).count("mpmd_map[")
