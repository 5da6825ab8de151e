"""The kinds of model that a run can train: shapes, initial parameters, and the module in both frameworks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.language_model.corpus import VOCABULARY
from examples.language_model.gru_parameters import GRUModelConfig
from examples.language_model.settings import Settings

Values = Mapping[str, np.ndarray]


class ParametersError(ValueError):
    """Parameters do not fit the model; the text names the first one."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of model; a framework is imported only when its module is requested.

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
    return {"mlstm": _mlstm, "gru": _gru}[settings.model](settings)


def _mlstm(settings: Settings) -> Kind:
    from examples.language_model import mlstm_parameters
    from examples.xlstm import parameters
    from examples.xlstm.tensors import tensor_shapes

    config = mlstm_parameters.config_of(settings)

    def torch_model() -> Any:
        from examples.xlstm.torch_model import XLSTM

        return XLSTM(config)

    def flax_model(dtype: Any) -> Any:
        from examples.xlstm.flax_model import XLSTM

        return XLSTM(config, dtype)

    return Kind(
        shapes=tensor_shapes(config),
        initial=lambda seed: mlstm_parameters.initial(config, seed),
        torch=torch_model,
        flax=flax_model,
        to_flax=lambda values: parameters.to_flax(config, values)["params"],
        from_flax=lambda tree: parameters.from_flax({"params": tree}),
    )


def _gru(settings: Settings) -> Kind:
    from examples.language_model import gru_parameters

    config = GRUModelConfig(vocabulary=VOCABULARY, width=settings.width, blocks=settings.blocks, heads=settings.heads)

    def torch_model() -> Any:
        from examples.language_model.gru_torch import GRUModel

        return GRUModel(config)

    def flax_model(dtype: Any) -> Any:
        from examples.language_model.gru_flax import GRUModel

        return GRUModel(config, dtype)

    return Kind(
        shapes=gru_parameters.shapes(config),
        initial=lambda seed: gru_parameters.initial(config, seed),
        torch=torch_model,
        flax=flax_model,
        to_flax=gru_parameters.to_flax,
        from_flax=lambda tree: gru_parameters.from_flax(config, tree),
    )
