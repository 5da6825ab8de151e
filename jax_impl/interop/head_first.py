"""`mlstm` for callers whose arrays are head-first, ``(B, N, S, ·)``, as in mlstm_kernels: checks, casts and layout."""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jax_impl._arrays import JAX, accumulation, is_array, setting
from jax_impl._backends import KernelBackend
from jax_impl._mlstm.api import mlstm
from reference.arguments import Call, MLSTMState, describe

HeadFirstState = tuple[jax.Array, jax.Array, jax.Array]
"""``(c, n, m)`` of shapes ``(B, N, K, V)``, ``(B, N, K)``, and ``(B, N)``, or ``(B, N, 1)`` for a step kernel."""


def run_sequences(
    inputs: tuple[jax.Array, ...],
    initial: MLSTMState | None,
    eps: float,
    chunk_size: int | None,
    kernel_backend: KernelBackend | None,
) -> tuple[jax.Array, HeadFirstState]:
    """`mlstm` in the head-first layout, with m of shape ``(B, N)``."""
    q, k, v, i, f = (x.swapaxes(1, 2) for x in inputs)
    options = {"eps": eps, "chunk_size": chunk_size, "kernel_backend": kernel_backend}
    h, (C, n, m) = mlstm(q, k, v, i, f, initial_state=initial, return_state=True, **options)
    return h.swapaxes(1, 2), (C, n, m)


def checked_inputs(function: str, inputs: tuple[jax.Array, ...], autocast_kernel_dtype: Any) -> tuple[jax.Array, ...]:
    """q, k, v, i and f with the right number of axes, q, k and v in the dtype that is asked for."""
    axes = {"q": "[B, N, S, K]", "k": "[B, N, S, K]", "v": "[B, N, S, V]", "i": "[B, N, S]", "f": "[B, N, S]"}
    for (name, expected), array in zip(axes.items(), inputs, strict=True):
        check_array(function, name, array)
        if array.ndim != expected.count(",") + 1:
            refuse(function, name, describe(array), expected)
    if autocast_kernel_dtype is None:
        return inputs
    dtype = floating_dtype(function, "autocast_kernel_dtype", autocast_kernel_dtype)
    for name, array in zip(axes, inputs, strict=True):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{function}: `{name}` is {describe(array)}; expected a floating-point array")
    values = tuple(x.astype(dtype) for x in inputs[:3])
    return values + tuple(x.astype(accumulation(values[2])) for x in inputs[3:])


def widened_state(function: str, state: tuple[jax.Array | None, ...], v: jax.Array) -> MLSTMState:
    """The state as `mlstm` takes it; a narrower dtype is widened, which is exact."""
    wide = accumulation(v)
    parts = []
    for name, part in zip("cnm", state, strict=True):
        if part is None:
            refuse(function, name, "None", "an array: a state is given whole or not at all")
        check_array(function, name, part)
        narrower = jnp.issubdtype(part.dtype, jnp.floating) and part.dtype.itemsize < wide.itemsize
        parts.append(part.astype(wide) if narrower else part)
    return MLSTMState(*parts)


def floating_dtype(function: str, argument: str, dtype: Any) -> np.dtype:
    """A dtype that arrays can have here, from itself or its name."""
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    available = found != np.float64 or setting("jax_enable_x64")
    if found is None or not jnp.issubdtype(found, jnp.floating) or not available:
        raise TypeError(
            f"{function}: `{argument}` is {dtype!r}; expected a floating-point dtype, float64 with jax_enable_x64 on"
        )
    return found


def check_array(function: str, name: str, array: Any) -> None:
    if not is_array(array):
        raise TypeError(f"{function}: `{name}` is {describe(array)}; expected a jax.Array or a numpy.ndarray")
    Call(function, JAX).kind(**{name: array})


def refuse(function: str, argument: str, got: str, expected: str) -> NoReturn:
    raise ValueError(f"{function}: `{argument}` is {got}; expected {expected}")
