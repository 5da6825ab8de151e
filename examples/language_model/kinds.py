"""The model of a run: shapes, initial parameters, and the module in both frameworks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.language_model import parameters
from examples.language_model.settings import Settings

Values = Mapping[str, np.ndarray]


class ParametersError(ValueError):
    """Parameters do not fit the model; the text names the first one."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A model; a framework is imported only when its module is requested.

    Attributes:
        shapes: the shape of every parameter, by its name.
        initial: seed → initial parameters, float32, the same for both frameworks.
        torch: makes the PyTorch model, whose parameters have the names of `shapes`.
        flax: dtype of the computation → the Flax model.
        to_flax, from_flax: convert between parameters by name and the Flax model's tree.
    """

    shapes: Mapping[str, tuple[int, ...]]
    initial: Callable[[int], dict[str, np.ndarray]]
    torch: Callable[[], Any]
    flax: Callable[[Any], Any]
    to_flax: Callable[[Values], dict[str, Any]]
    from_flax: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]

    def check(self, values: Values) -> None:
        """Raise for parameters that do not fit the model.

        Raises:
            ParametersError: one is missing or unknown, or has another shape or dtype.
        """
        for name, shape in self.shapes.items():
            if name not in values:
                raise ParametersError(f"`{name}` is missing")
            value = values[name]
            if value.shape != shape:
                raise ParametersError(f"`{name}` has shape {list(value.shape)}; expected {list(shape)}")
            if value.dtype != np.float32:
                raise ParametersError(f"`{name}` is {value.dtype}; expected float32")
        if unknown := sorted(set(values) - set(self.shapes)):
            raise ParametersError(f"`{unknown[0]}` is not a parameter of the model")


def kind_of(settings: Settings) -> Kind:
    """The model that the settings describe."""
    config, cells = parameters.config_of(settings), settings.cells

    def torch_model() -> Any:
        from examples.language_model.torch_blocks import model_of

        return model_of(config, cells)

    def flax_model(dtype: Any) -> Any:
        from examples.language_model.flax_blocks import model_of

        return model_of(config, cells, dtype)

    return Kind(
        shapes=parameters.shapes(config, cells),
        initial=lambda seed: parameters.initial(config, cells, seed),
        torch=torch_model,
        flax=flax_model,
        to_flax=parameters.to_flax,
        from_flax=parameters.from_flax,
    )
