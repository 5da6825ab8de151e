"""Arrays in JAX: which objects count as one, where they are, and in which dtype and precision operations compute."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jax_impl._mesh_axes import vary_like
from reference.arguments import Framework, accumulation_dtype, dtype_name


def setting(name: str) -> Any:
    """The value of an option of ``jax.config``."""
    return getattr(jax.config, name)


def is_array(x: object) -> bool:
    """Whether ``x`` is an array that operations take; tracers are."""
    return isinstance(x, jax.Array | np.ndarray)


def _values(cu_seqlens: Any) -> np.ndarray | None:
    """The values on the host; None for traced ones, and where reading them would wait for a device."""
    if isinstance(cu_seqlens, np.ndarray):
        return cu_seqlens
    if is_traced(cu_seqlens) or not cu_seqlens.is_fully_addressable or platform(cu_seqlens) != "cpu":
        return None
    return np.asarray(cu_seqlens)


def _alternative_to_a_cast(x: Any) -> str | None:
    if x.dtype == np.float64 and not setting("jax_enable_x64"):
        return "float32, or float64 with jax_enable_x64 on"
    return None


JAX = Framework(
    array="a jax.Array or a numpy.ndarray", is_array=is_array, values=_values, refuses=_alternative_to_a_cast
)


def is_traced(x: Any) -> bool:
    """Whether ``x`` has no values yet, as under `jax.jit`."""
    return isinstance(x, jax.core.Tracer)


def platform(x: Any) -> str:
    """The device type that holds ``x``.

    Of a tracer or a NumPy array, the one of the abstract mesh in use (for export to devices that are not there), else
    the one that a computation goes to by default.
    """
    if isinstance(x, jax.Array) and not is_traced(x):
        return next(iter(x.sharding.device_set)).platform
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None:
        return abstract.platform
    device = setting("jax_default_device")
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def matmul_precision() -> str:
    """The precision of float32 products: the user's ``jax_default_matmul_precision``, or IEEE float32."""
    return setting("jax_default_matmul_precision") or "highest"


def accumulation(x: Any) -> np.dtype:
    """The dtype in which states and their gradients are carried beside values like ``x``."""
    return np.dtype(accumulation_dtype(dtype_name(x)))


def einsum(letters: str, x: jax.Array, y: jax.Array, precision: str) -> jax.Array:
    """A product in the dtype of its operands and a given precision."""
    return jnp.einsum(letters, x, y, precision=precision, preferred_element_type=x.dtype)


def zeros_like_states(x: jax.Array, *shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Zero states in the accumulation dtype beside values ``x``, varying over the same mesh axes."""
    return tuple(vary_like(jnp.zeros(shape, accumulation(x)), x) for shape in shapes)
