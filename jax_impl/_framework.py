"""What JAX takes as an array, and what every operation asks of it: precision, accumulation dtype, varying axes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from reference.arguments import Framework, accumulation_dtype, dtype_name


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _is_array(x: object) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _values(cu_seqlens: Any) -> np.ndarray | None:
    """The values where reading them neither waits for a device nor leaves a trace."""
    if isinstance(cu_seqlens, np.ndarray):
        return cu_seqlens
    if is_traced(cu_seqlens) or not cu_seqlens.is_fully_addressable or platform(cu_seqlens) != "cpu":
        return None
    return np.asarray(cu_seqlens)


def _instead_of_a_cast(x: Any) -> str | None:
    if x.dtype == np.float64 and not _setting("jax_enable_x64"):
        return "float32, or float64 with jax_enable_x64 on"
    return None


JAX = Framework(array="a jax.Array or a numpy.ndarray", is_array=_is_array, values=_values, refuses=_instead_of_a_cast)


def is_traced(x: Any) -> bool:
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
    device = _setting("jax_default_device")
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def planned_once(plan: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what ``plan(*arguments)`` decided for each combination of kinds, shapes, dtypes, devices and options.

    A second call like the first is then checked at the price of looking it up. The plan must not read values of arrays.
    """
    plans: dict[Any, Any] = {}

    def remembering(*arguments: Any) -> Any:
        try:
            key = (_setting("jax_enable_x64"), tuple(map(_signature, arguments)))
            decided = plans.get(key)
        except TypeError:
            return plan(*arguments)
        if decided is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            decided = plans[key] = plan(*arguments)
        return decided

    return remembering


MOST_PLANS = 4096


_PLAIN = frozenset((type(None), bool, int, float, str))
_concrete: set[type] = set()
"""The classes of arrays with values that were seen: asking `isinstance` each time is a third of a call's fixed cost."""


def _signature(x: Any) -> Any:
    """What a plan may depend on: hashable, or a TypeError where it is hashed."""
    kind = type(x)
    if kind in _concrete:
        return x.aval, x.sharding
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, tuple):
        return kind, tuple(map(_signature, x))
    if _is_array(x):
        if isinstance(x, jax.Array) and not is_traced(x):
            _concrete.add(kind)
        return x.shape, x.dtype, platform(x)
    return type(x), x


def matmul_precision() -> str:
    """The precision of float32 products: the user's ``jax_default_matmul_precision``, or IEEE float32."""
    return _setting("jax_default_matmul_precision") or "highest"


def accumulation(x: Any) -> np.dtype:
    """The dtype in which states and their gradients are carried beside values like ``x``."""
    return np.dtype(accumulation_dtype(dtype_name(x)))


def vary_alike(tree: Any) -> Any:
    """Cast every array to vary over the union of the mesh axes that any of them varies over (under ``shard_map``).

    A hand-written gradient has the type of what came in: the cast stands before it, so that its transpose sums the
    gradient of what was replicated.
    """
    union = frozenset[Any]().union(*(varying_axes(x) for x in jax.tree.leaves(tree)))
    return jax.tree.map(partial(vary_to, union), tree) if union else tree


def vary_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """Cast a fresh array to vary over the mesh axes that ``like`` varies over."""
    return vary_to(varying_axes(like), x)


def varying_axes(x: Any) -> frozenset:
    """The mesh axes that an array, or the result of ``jax.eval_shape``, varies over."""
    manual = (x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)).manual_axis_type
    return frozenset() if manual is None else manual.varying


def vary_to(axes: frozenset, x: jax.Array) -> jax.Array:
    """Cast an array to vary over the mesh axes ``axes`` too."""
    missing = tuple(axes - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def own_gradient(function: str) -> Callable[[Callable], Any]:
    """Decorates ``f(options, *arrays)`` with static options, whose gradient is written by hand (``defvjp``).

    Forward mode raises with the public ``function``'s name, jitted or not; mapped (``jax.jacfwd`` of the function
    itself), JAX's own TypeError comes before.
    """

    def decorate(f: Callable) -> Any:
        return _OwnGradient(function, f)

    return decorate


class _OwnGradient:
    def __init__(self, function: str, f: Callable) -> None:
        self._function = function
        self._rule = jax.custom_vjp(f, nondiff_argnums=(0,))
        self.defvjp = self._rule.defvjp

    def __call__(self, options: Any, *arrays: Any) -> Any:
        return self._rule(options, *jax.tree.map(self._in_reverse_only, arrays))

    def _in_reverse_only(self, x: jax.Array) -> jax.Array:
        return _in_reverse_only(self._function, x) if jnp.issubdtype(x.dtype, jnp.floating) else x


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _in_reverse_only(function: str, x: jax.Array) -> jax.Array:
    return x


@_in_reverse_only.defjvp
def _(function: str, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return primals[0], _TANGENT.bind(tangents[0], function=function)


def _refuse_forward(*_: Any, function: str, **__: Any) -> NoReturn:
    raise NotImplementedError(_first_order_only(function))


def _mapped(tangents: tuple, axes: tuple, *, function: str) -> tuple[Any, Any]:
    return _TANGENT.bind(tangents[0], function=function), axes[0]


_TANGENT = Primitive("reverse_only")
"""The identity on tangents. Reverse mode transposes it and never runs it; forward mode has to, and is refused."""
_TANGENT.def_impl(_refuse_forward)
_TANGENT.def_abstract_eval(lambda tangent, **_: tangent)
ad.deflinear2(_TANGENT, lambda cotangent, *_, **__: [cotangent])
batching.primitive_batchers[_TANGENT] = _mapped
mlir.register_lowering(_TANGENT, _refuse_forward)


def first_order(function: str) -> Callable[[Callable], Callable]:
    """Make a hand-written backward pass ``backward(options, *arrays)`` raise where it is differentiated in its turn."""

    def decorate(backward: Callable) -> Callable:
        once = jax.custom_jvp(backward, nondiff_argnums=(0,))

        @once.defjvp
        def refuse(options: Any, primals: Any, tangents: Any) -> NoReturn:
            raise NotImplementedError(_first_order_only(function))

        return once

    return decorate


def _first_order_only(function: str) -> str:
    return (
        f"{function}: forward-mode and second derivatives are not available on any backend; its gradient is written "
        "by hand, for one differentiation in reverse mode (jax.grad, jax.vjp). Where others are needed, differentiate "
        "the recurrence written out with jax.lax.scan"
    )


def zeros_like_states(x: jax.Array, *shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Zero states in the accumulation dtype beside values ``x``, varying over the same mesh axes."""
    return tuple(vary_like(jnp.zeros(shape, accumulation(x)), x) for shape in shapes)
