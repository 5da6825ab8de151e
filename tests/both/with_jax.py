"""JAX and `jax_impl` as the tests of both frameworks use them; `with_torch` offers the same names."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

import jax_impl as package

leaves, jit, vjp, vmap, wide = jax.tree.leaves, jax.jit, jax.vjp, jax.vmap, jax.enable_x64


def array(x: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(np.array(x), dtype)


def numpy(x: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float64)


def dtype_of(x: jax.Array) -> str:
    return x.dtype.name


def random_state(seed: int) -> jax.Array:
    """A random state as `accumulate_gradients` takes it."""
    return jax.random.key(seed)


def pull_back(
    function: Callable, arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[Any]]:
    """The leaves of ``function(*arrays)``, and the gradients of the arrays."""
    outputs, vjp = jax.vjp(lambda *x: leaves(function(*x)), *arrays)
    return outputs, list(vjp(list(cotangents)))


@jax.jit
def steps(*arrays: jax.Array) -> jax.Array:
    """h of `mlstm` by `mlstm_step`, from an empty memory."""
    (B, _, N, K), V, dtype = arrays[0].shape, arrays[2].shape[-1], arrays[2].dtype
    state = package.MLSTMState(*(jnp.zeros(shape, dtype) for shape in ((B, N, K, V), (B, N, K), (B, N))))

    def step(state: Any, x: tuple) -> tuple:
        h, state = package.mlstm_step(*x, state)
        return state, h

    _, h = jax.lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in arrays))
    return jnp.moveaxis(h, 0, 1)


def layer_parameters(name: str, settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """The initial parameters of a layer; a projection has a kernel, (in, out), and a bias."""
    x = jnp.zeros((1, 1, settings["input_size"]))
    params = getattr(package, name)(**settings).init(jax.random.key(seed), x)["params"]
    found = flatten_dict(params, sep=".")
    return {path: numpy(x) for path, x in found.items()}


def layer_call(name: str, settings: dict[str, Any], paths: Sequence[str], method: str = "__call__") -> Callable:
    """A method of a layer as a function of its parameters at these paths, of its input and of keywords."""
    layer = getattr(package, name)(**settings)

    def call(*arrays: jax.Array, **given: Any) -> Any:
        params = unflatten_dict(dict(zip(paths, arrays, strict=False)), sep=".")
        return layer.apply({"params": params}, arrays[len(paths)], method=method, **given)

    return call
