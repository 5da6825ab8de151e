"""Layers of JAX, ``flax.linen`` modules, whose parameters have the same names as in every other framework here."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from conformance.dtypes import Array
from conformance.frameworks._trees import flattened, leaves, nested
from conformance.implementation import Implementation, Layer, Named, Results


class JaxLayer(Layer):
    """See `conformance.implementation.Layer`.

    A flax module has parameters only once it knows its input, so ``init`` creates them from an example, and only when
    they are needed.
    """

    def __init__(self, made: Any, init: Callable[[], Any], implementation: Implementation):
        super().__init__(made, implementation)
        self._init = init

    @property
    def parameters(self) -> Results:
        return {name: self._neutral(x) for name, x in flattened(self._init().get("params", {})).items()}

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        variables = {"params": nested(parameters)} if parameters else {}
        return leaves(self.made.apply(variables, **arrays, **options))

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        outputs = jax.jit(lambda p, x: self._apply(p, x, options))(self._natives(parameters), self._natives(arrays))
        return [self._neutral(y) for y in outputs]

    def vjp(
        self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]
    ) -> tuple[list[Array], Results]:
        natives = self._natives(arrays)
        whole = {name: x for name, x in natives.items() if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating)}
        floating = {name: x for name, x in natives.items() if name not in whole}

        def both(parameters: Any, floating: Any, cotangents: Any) -> Any:
            outputs, pull = jax.vjp(lambda p, x: self._apply(p, {**x, **whole}, options), parameters, floating)
            return outputs, pull(cotangents)

        given = [self._native(d) for d in cotangents]
        outputs, gradients = jax.jit(both)(self._natives(parameters), floating, given)
        named = {**gradients[0], **gradients[1]}
        return [self._neutral(y) for y in outputs], {name: self._neutral(g) for name, g in named.items()}
