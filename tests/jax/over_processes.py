"""What the helpers around operations give on a mesh of eight devices, whatever processes these belong to.

``python -m tests.jax.over_processes DIRECTORY`` runs in one of two processes, and writes what its process sees.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jax_impl
from tests.jax.test_sequence_parallel import collectives

ALL = ("dp", "tp")
AXES = ("dp", "tp", ALL, ("tp", "dp"))
ROWS, STEPS, WIDTH, MINIBATCHES = 32, 5, 3, 2


def results(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """By name, what each device has along two leading axes, or what all have; and the collectives of a step."""
    mesh = jax.make_mesh(shape, ALL, axis_types=(AxisType.Auto,) * 2)
    found = sharding(mesh)
    for use_scan in (False, True):
        found |= {f"{name}, scan={use_scan}": x for name, x in accumulation(mesh, use_scan).items()}
    return {name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in found.items()}


def sharding(mesh: Mesh) -> dict[str, Any]:
    x = np.arange(8.0 * 16, dtype=np.float32).reshape(8, 16)

    def device(x: jax.Array, rng: jax.Array) -> dict[str, jax.Array]:
        place = jax.lax.axis_index(ALL)
        w = x[0, :6].reshape(3, 2) + 100 * place.astype(x.dtype)
        own: dict[str, jax.Array] = {}
        for axis in AXES:
            own[f"rows over {axis}"] = jax_impl.split_array_over_mesh(x, axis, 0)
            own[f"columns over {axis}"] = jax_impl.split_array_over_mesh(x, axis, -1)
            own[f"key over {axis}"] = jax.random.bits(jax_impl.fold_rng_over_axis(rng, axis))
            stacked = jax_impl.stack_params({"w": w, "b": nn.Partitioned(w[0], (None,))}, axis, axis=-1)
            assert {name: box.names[-1] for name, box in stacked.items()} == dict.fromkeys("wb", axis)
            own[f"stacked over {axis}"] = stacked["w"].value
            own[f"unstacked over {axis}"] = jax_impl.unstack_params(stacked, axis)["w"]
            own[f"one shard over {axis}"] = jax_impl.stack_params(w, axis, mask_except=1).value
        missing = {name: frozenset(ALL) - jax.typeof(x).manual_axis_type.varying for name, x in own.items()}
        own = {name: jax.lax.pcast(x, tuple(missing[name]), to="varying") for name, x in own.items()}
        return {name: x[None, None] for name, x in own.items()}

    over = jax.shard_map(device, mesh=mesh, in_specs=(P(), P()), out_specs=P(*ALL))
    found = jax.jit(over)(x, jax.random.key_data(jax.random.key(3)))

    # One array of all shards: what a device has stacked is its part, and what it unstacks from its part of the array.
    def stack(w: jax.Array) -> jax.Array:
        return jax_impl.stack_params(w * (1.0 + jax.lax.axis_index("dp")), "dp", axis=1).value

    def unstack(whole: jax.Array) -> jax.Array:
        return jax_impl.unstack_params(nn.Partitioned(whole, (None, "dp")), "dp")[None]

    whole = jax.jit(jax.shard_map(stack, mesh=mesh, in_specs=P(), out_specs=P(None, "dp")))(x[0])
    parts = jax.jit(jax.shard_map(unstack, mesh=mesh, in_specs=P(None, "dp"), out_specs=P("dp")))(whole)
    return found | {"whole": whole, "parts": parts}


def batch() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Parameters, one of them in 16 bits, and rows of which some have no tokens that count."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(WIDTH, 2)).astype(np.float32), "b": jnp.full(2, 0.5, jnp.bfloat16)}
    rows = {"x": rng.normal(size=(ROWS, STEPS, WIDTH)), "y": rng.normal(size=(ROWS, STEPS, 2))}
    counts = rng.integers(0, STEPS + 1, ROWS)
    counts[:4] = 0  # the first device has nothing to count
    rows["counts"] = np.arange(STEPS) < counts[:, None]
    return params, {name: x.astype(np.float32) for name, x in rows.items()}


def squares(params: Any, rows: Any) -> jax.Array:
    error = jnp.tanh(rows["x"] @ params["w"] + params["b"].astype(jnp.float32)) - rows["y"]
    return jnp.sum(rows["counts"][..., None] * error**2)


def mean_over_tokens(params: Any, rows: Any) -> jax.Array:
    return squares(params, rows) / rows["counts"].sum()


def accumulation(mesh: Mesh, use_scan: bool) -> dict[str, Any]:
    """The gradient of the mean over the tokens of all devices, and the collectives of the program that computes it."""
    params, rows = batch()

    def loss(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
        return mean_over_tokens(params, minibatch), ({"squares": squares(params, minibatch)}, None)

    def device(params: Any, rows: Any) -> Any:
        counts = rows["counts"].reshape(MINIBATCHES, -1).sum(1)
        gradients, metrics, _ = jax_impl.accumulate_gradients(
            SimpleNamespace(params=params, apply_fn=None), rows, jax.random.key(0), MINIBATCHES, loss, use_scan,
            weights=counts, total_weight=jax.lax.psum(counts.sum(), ALL),
        )  # fmt: skip
        return gradients, jax.lax.psum(metrics["squares"], ALL)

    step = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=(P(), P(ALL)), out_specs=P()))
    gradients, total = step(params, rows)
    program = step.lower(params, rows).compile().as_text()
    summed = collectives(program)
    in_a_loop = sum(" all-reduce(" in line and "/while/" in line for line in program.splitlines())
    assert list(summed) == ["all-reduce"]
    return {name: x.astype(jnp.float32) for name, x in gradients.items()} | {
        "squares": total,
        "numbers that are summed": np.array(sum(summed["all-reduce"])),
        "all-reduces in a loop": np.array(in_a_loop),
    }


if __name__ == "__main__":
    jax.distributed.initialize(
        f"localhost:{os.environ['MASTER_PORT']}", 2, int(os.environ["RANK"]), initialization_timeout=60
    )
    assert len(jax.devices()) == 8 and len(jax.local_devices()) == 4
    for shape in ((2, 4), (4, 2)):
        np.savez(Path(sys.argv[1]) / f"{shape}-{jax.process_index()}.npz", **results(shape))
    jax.distributed.shutdown()
