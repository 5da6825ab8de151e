"""JAX arrays: which objects count as arrays, where they are, and the dtype and precision of the computation."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jax_impl._mesh_axes import vary_like
from reference.arguments import Framework, accumulation_dtype, describe, dtype_name


def setting(name: str) -> Any:
    """The value of an option of ``jax.config``."""
    return getattr(jax.config, name)


def is_array(x: object) -> bool:
    """Whether ``x`` is an array that operations accept, which includes tracers."""
    return isinstance(x, jax.Array | np.ndarray)


def _values(cu_seqlens: Any) -> np.ndarray | None:
    """The values as NumPy; None if they are traced or if reading them would wait for a device."""
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


def check_key(function: str, rng: Any) -> None:
    """Raise for a random state that is not a single JAX key of either style."""
    if is_array(rng):
        typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
        if rng.ndim == 0 if typed else rng.ndim == 1 and rng.dtype == np.uint32:
            return
    raise TypeError(f"{function}: `rng` is {describe(rng)}; expected a JAX random key")


def is_traced(x: Any) -> bool:
    """Whether ``x`` is traced and has no values yet, as under `jax.jit`."""
    return isinstance(x, jax.core.Tracer)


def is_symbolic(*sizes: Any) -> bool:
    """Whether one of the sizes is a symbol of jax.export, whose value is not known."""
    return not all(isinstance(size, int) for size in sizes)


def platform(x: Any) -> str:
    """The device type that holds ``x``.

    For a tracer or a NumPy array it is the device type of the current abstract mesh (so that code can be exported for
    devices that are not present), else that of the default device.
    """
    if isinstance(x, jax.Array) and not is_traced(x):
        return next(iter(x.sharding.device_set)).platform
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None:
        return abstract.platform
    device = setting("jax_default_device")
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def architecture(x: Any) -> str:
    """The architecture of the GPU that holds ``x``, for which kernels are compiled: ``"sm_90"`` or ``"gfx942"``.

    Empty for other devices, and for the GPU of an abstract mesh, which says nothing of it.
    """
    if platform(x) in ("cpu", "tpu"):
        return ""
    if isinstance(x, jax.Array) and not is_traced(x):
        device = next(iter(x.sharding.device_set))
    elif jax.sharding.get_abstract_mesh().abstract_device is not None:
        return ""
    else:
        default = setting("jax_default_device")
        device = jax.devices(default)[0] if default is None or isinstance(default, str) else default
    capability = str(getattr(device, "compute_capability", ""))
    return f"sm_{capability.replace('.', '')}" if capability[:1].isdigit() else capability.partition(":")[0]


def matmul_precision() -> str:
    """The precision of float32 products: the user's ``jax_default_matmul_precision`` if set, else IEEE float32."""
    return setting("jax_default_matmul_precision") or "highest"


def accumulation(x: Any) -> np.dtype:
    """The accumulation dtype for values like ``x``, in which states and their gradients are carried."""
    return np.dtype(accumulation_dtype(dtype_name(x)))


def einsum(letters: str, x: jax.Array, y: jax.Array, precision: str) -> jax.Array:
    """A product in the dtype of its operands, with the given precision."""
    return jnp.einsum(letters, x, y, precision=precision, preferred_element_type=x.dtype)


def zeros_like_states(x: jax.Array, *shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Zero states in the accumulation dtype for values ``x``, varying over the same mesh axes."""
    return tuple(vary_like(jnp.zeros(shape, accumulation(x)), x) for shape in shapes)
