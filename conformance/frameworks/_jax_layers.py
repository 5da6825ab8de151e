"""Layers of JAX, ``flax.linen`` modules, whose parameters have the same names as in every other framework here."""

from collections.abc import Callable, Mapping
from typing import Any

from conformance.frameworks._trees import flattened, leaves, nested
from conformance.implementation import Implementation, Results
from conformance.layer import Layer


class JaxLayer(Layer):
    """See `conformance.layer.Layer`.

    A flax module has parameters only once it knows its input, so ``init`` creates them from an example, and only when
    they are needed.
    """

    def __init__(self, made: Any, init: Callable[[], Any], implementation: Implementation):
        super().__init__(made, implementation)
        self._init = init

    @property
    def parameters(self) -> Results:
        created = flattened(self._init().get("params", {}))
        return {name: self._implementation.neutral(x) for name, x in created.items()}

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        variables = {"params": nested(parameters)} if parameters else {}
        return leaves(self.made.apply(variables, **arrays, **options))
