"""Handwritten gradients: differentiable once, in reverse mode; any other derivative raises with the function's name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


class Passes(NamedTuple):
    """The two passes of an operation on one backend, which alone knows the structure of its residuals.

    Attributes:
        forward: ``(options, arguments) → (result, residuals)``.
        backward: ``(options, residuals, cotangents of the result) → gradients``.
    """

    forward: Callable[[Any, Any], tuple[Any, Any]]
    backward: Callable[[Any, Any, Any], Any]


def differentiable_operation(
    function: str, arguments: Any, backends: Mapping[str, Passes]
) -> Callable[[Any, Any], Any]:
    """Like `handwritten_gradient`, for an operation whose passes are looked up by ``options.backend``."""

    def forward(options: Any, x: Any) -> tuple[Any, Any]:
        return backends[options.backend].forward(options, x)

    @without_second_derivative(function)
    def backward(options: Any, residuals: Any, cotangents: Any) -> Any:
        return backends[options.backend].backward(options, residuals, cotangents)

    return handwritten_gradient(function, arguments, forward, backward)


def handwritten_gradient(
    function: str,
    arguments: Any,
    forward: Callable[[Any, Any], tuple[Any, Any]],
    backward: Callable[[Any, Any, Any], Any],
) -> Callable[[Any, Any], Any]:
    """The differentiable function ``(options, arguments) → result`` made of a forward and a backward pass.

    Forward mode raises with the name of the public ``function``, jitted or not, mapped or not.

    Args:
        function: the public name that errors mention.
        arguments: the NamedTuple type of the arguments; its fields are arrays, trees of arrays, or None.
        forward: ``(options, arguments) → (result, residuals)`` with static options.
        backward: ``(options, residuals, cotangents of the result) → gradients``, an object with an attribute for each
            argument that has a gradient; arguments without such an attribute have none. It is decorated with
            `without_second_derivative`.
    """

    def value(options: Any, x: Any) -> Any:
        return forward(options, x)[0]

    def pull_back(options: Any, residuals: Any, cotangents: Any) -> tuple[Any]:
        gradients = backward(options, residuals, cotangents)
        return (arguments(**{name: getattr(gradients, name, None) for name in arguments._fields}),)

    value.__name__ = function
    rule = jax.custom_vjp(value, nondiff_argnums=(0,))
    rule.defvjp(forward, pull_back)
    return lambda options, x: rule(options, jax.tree.map(partial(_in_reverse_only, function), x))


def without_second_derivative(function: str) -> Callable[[Callable], Callable]:
    """Decorate ``pass(options, *arrays)`` so that differentiating it raises."""

    def decorate(once: Callable) -> Callable:
        guarded = jax.custom_jvp(once, nondiff_argnums=(0,))

        @guarded.defjvp
        def refuse(options: Any, primals: Any, tangents: Any) -> NoReturn:
            raise NotImplementedError(_first_order_only(function))

        return guarded

    return decorate


def _in_reverse_only(function: str, x: jax.Array) -> jax.Array:
    return _IDENTITY.bind(x, function=function) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _refuse_forward(*_: Any, function: str, **__: Any) -> NoReturn:
    raise NotImplementedError(_first_order_only(function))


def _differentiated(primals: tuple, tangents: tuple, *, function: str) -> tuple[Any, Any]:
    tangent = tangents[0]
    if not isinstance(tangent, ad.Zero):
        tangent = _TANGENT.bind(tangent, function=function)
    return _IDENTITY.bind(primals[0], function=function), tangent


def _mapped(arrays: tuple, axes: tuple, *, function: str) -> tuple[Any, Any]:
    return _IDENTITY.bind(arrays[0], function=function), axes[0]


_IDENTITY = Primitive("in_reverse_only")
"""The identity, whose tangent is `_TANGENT`. In the gradient of a mapped function it is mapped before it is
differentiated; only forward mode maps tangents."""
_IDENTITY.def_impl(lambda x, **_: x)
_IDENTITY.def_abstract_eval(lambda x, **_: x)
ad.primitive_jvps[_IDENTITY] = _differentiated
batching.primitive_batchers[_IDENTITY] = _mapped
mlir.register_lowering(_IDENTITY, lambda _, x, **__: [x])

_TANGENT = Primitive("reverse_only")
"""The identity on tangents. Reverse mode only transposes it; forward mode has to run it or to map it, and raises."""
_TANGENT.def_impl(_refuse_forward)
_TANGENT.def_abstract_eval(lambda tangent, **_: tangent)
ad.deflinear2(_TANGENT, lambda cotangent, *_, **__: [cotangent])
batching.primitive_batchers[_TANGENT] = _refuse_forward
mlir.register_lowering(_TANGENT, _refuse_forward)


def _first_order_only(function: str) -> str:
    return (
        f"{function}: forward-mode and second derivatives are not available on any backend; its gradient is written "
        "by hand, for one differentiation in reverse mode (jax.grad, jax.vjp). Where others are needed, differentiate "
        "the recurrence written out with jax.lax.scan"
    )
