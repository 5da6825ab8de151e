"""Layers of NumPy: a class that takes settings and a seed, has ``params`` and can be called."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from conformance.dtypes import Array
from conformance.frameworks._trees import flattened, leaves, nested
from conformance.implementation import Named, Results


class NumPyLayer:
    """See `conformance.implementation.Layer`."""

    def __init__(
        self,
        make: Callable[..., Any],
        settings: Mapping[str, Any],
        seed: int,
        native: Callable[[Array], np.ndarray],
        neutral: Callable[[Any], Array],
    ):
        holds_parameters = "config" not in settings
        self.made = make(**settings, **({"rng": seed} if holds_parameters else {}))
        self.native = native
        self.neutral = neutral

    @property
    def parameters(self) -> Results:
        return {name: self.neutral(x) for name, x in flattened(getattr(self.made, "params", {})).items()}

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        layer = copy.copy(self.made)
        if parameters:
            layer.params = nested({name: self.native(x) for name, x in parameters.items()})
        result = layer(**{name: self.native(x) for name, x in arrays.items()}, **options)
        return [self.neutral(x) for x in leaves(result)]

    def vjp(self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]) -> NoReturn:
        raise NotImplementedError("NumPy layers have no gradient")
