"""A layer: an object that holds parameters or a configuration, seen through its framework's adapter."""

import copy
from collections.abc import Mapping
from typing import Any

from conformance.base.dtypes import Array
from conformance.base.result_form import expect_array
from conformance.frameworks.implementation import Function, Named, Results
from tests.calls.trees import flattened, leaves, nested


class Layer:
    """A layer of a target: `GRU` or `mLSTMBackendFwbw`.

    Attributes:
        made: the framework's own layer.
    """

    def __init__(self, made: Any, implementation: Any):
        self.made = made
        self._implementation = implementation

    @property
    def parameters(self) -> Results:
        """The initial parameters by path: ``state_weight``, ``input_projection.kernel`` (from features in to features
        out), ``input_projection.bias``."""
        raise NotImplementedError

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        """The arrays that the layer returns, as a flat list, with these parameters instead of its own.

        Args:
            parameters: parameters by path, as in `parameters`.
            arrays: the arrays by the keywords of the layer's call.
            options: the keywords that are not arrays.
        """
        results = self._implementation.run(self, self._function(parameters, options), {**parameters, **arrays})
        return list(results.values())

    def vjp(
        self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]
    ) -> tuple[list[Array], Results]:
        """Outputs, and the gradient with respect to every parameter and every floating-point array."""
        function, of = self._function(parameters, options), _numbered(cotangents)
        outputs, gradients = self._implementation.gradient_of(function, {**parameters, **arrays}, of)
        return list(outputs.values()), gradients

    def _function(self, parameters: Named, options: Mapping[str, Any]) -> Function:
        def function(given: dict[str, Any]) -> dict[str, Any]:
            own = {name: x for name, x in given.items() if name in parameters}
            outputs = self._apply(own, {name: x for name, x in given.items() if name not in own}, options)
            for number, x in enumerate(outputs):
                expect_array(type(self.made).__name__, f"output {number}", x, self._implementation.kind)
            return _numbered(outputs)

        return function

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        """The outputs of a call, from and in the framework's own arrays."""
        raise NotImplementedError


def _numbered(arrays: list[Any]) -> dict[str, Any]:
    return {str(number): x for number, x in enumerate(arrays)}


class NumPyLayer(Layer):
    """An object with ``params`` that can be called; see `Layer`."""

    @property
    def parameters(self) -> Results:
        own = flattened(getattr(self.made, "params", {}))
        return {name: self._implementation.neutral(x) for name, x in own.items()}

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        layer = copy.copy(self.made)
        if parameters:
            layer.params = nested(parameters)
        return leaves(layer(**arrays, **options))
