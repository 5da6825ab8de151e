"""The layers as modules of Flax NNX, ``jax_impl.nnx.GRU``, `sLSTM` and `mLSTM`; imported only when asked for.

Each has the parameters of the linen layer of the same name, under the same names, and computes what that one does::

    layer = jax_impl.nnx.GRU(64, 16, 64, 8, rngs=nnx.Rngs(0))
    output, state = layer(input)
    linen_layer, variables = layer.to_linen()
    layer = jax_impl.nnx.GRU.from_linen(linen_layer, variables)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx

import jax_impl
from reference.arguments import MLSTMState

__all__ = ["GRU", "mLSTM", "sLSTM"]


class _Layer(nnx.Module):
    """A layer whose settings and computation are those of a linen module."""

    _linen_class: ClassVar[type[flax.linen.Module]]

    def __init__(self, *arguments: Any, rngs: nnx.Rngs, **settings: Any) -> None:
        self._linen = self._linen_class(*arguments, **settings)
        # One sequence without steps is enough to make the parameters.
        input = jnp.zeros((1, 0, self._linen.input_size), self._linen.param_dtype)
        for name, value in self._linen.init(rngs.params(), input)["params"].items():
            setattr(self, name, _Leaves(value) if isinstance(value, Mapping) else nnx.Param(value))

    @classmethod
    def from_linen(cls, layer: flax.linen.Module, variables: Mapping[str, Any]) -> Self:
        """The layer with the settings of a linen layer and the parameters ``variables["params"]``.

        Raises:
            TypeError: `layer` is not the linen layer of this name.
            ValueError: the parameters have other names or shapes than the layer's.
        """
        if not isinstance(layer, cls._linen_class):
            expected = f"jax_impl.{cls._linen_class.__name__}"
            raise TypeError(f"{cls.__name__}.from_linen: `layer` is a {type(layer).__name__}; expected {expected}")
        settings = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer) if field.init}
        settings = {name: value for name, value in settings.items() if name not in ("parent", "name")}
        made = nnx.eval_shape(lambda: cls(**settings, rngs=nnx.Rngs(0)))
        state = nnx.state(made, nnx.Param)
        wanted, given = (jax.tree.map(jnp.shape, tree) for tree in (nnx.to_pure_dict(state), variables["params"]))
        if wanted != given:
            raise ValueError(f"{cls.__name__}.from_linen: `variables` has shapes {given}; expected {wanted}")
        nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, variables["params"]))
        nnx.update(made, state)
        return made

    def to_linen(self) -> tuple[Any, dict[str, Any]]:
        """The linen layer with these settings, and its variables, ``{"params": ...}``."""
        return self._linen, {"params": nnx.to_pure_dict(nnx.state(self, nnx.Param))}

    def __call__(self, input: jax.Array, *arguments: Any, **options: Any) -> tuple[jax.Array, Any]:
        """Run the layer; arguments and results are those of the linen layer."""
        layer, variables = self.to_linen()
        return layer.apply(variables, input, *arguments, **options)


class _Leaves(nnx.Module):
    """The parameters of a projection or a norm."""

    def __init__(self, values: Mapping[str, jax.Array]) -> None:
        for name, value in values.items():
            setattr(self, name, nnx.Param(value))


class GRU(_Layer):
    """The layer `jax_impl.GRU` as a module of NNX.

    Args:
        arguments, settings: those of `jax_impl.GRU`.
        rngs: its stream ``params`` draws the initial parameters.

    Raises:
        TypeError, ValueError: as in `jax_impl.GRU`.
    """

    _linen_class = jax_impl.GRU


class sLSTM(_Layer):
    """The layer `jax_impl.sLSTM` as a module of NNX.

    Args:
        arguments, settings: those of `jax_impl.sLSTM`.
        rngs: its stream ``params`` draws the initial parameters.

    Raises:
        TypeError, ValueError: as in `jax_impl.sLSTM`.
    """

    _linen_class = jax_impl.sLSTM


class mLSTM(_Layer):
    """The layer `jax_impl.mLSTM` as a module of NNX.

    Args:
        arguments, settings: those of `jax_impl.mLSTM`.
        rngs: its stream ``params`` draws the initial parameters.

    Raises:
        TypeError, ValueError: as in `jax_impl.mLSTM`.
    """

    _linen_class = jax_impl.mLSTM

    def initial_state(self, batch_size: int) -> MLSTMState:
        """The empty memory of `batch_size` sequences."""
        return self._linen.initial_state(batch_size)

    def step(self, input: jax.Array, state: MLSTMState, **options: Any) -> tuple[jax.Array, MLSTMState]:
        """One step of each sequence, as `jax_impl.mLSTM.step`."""
        layer, variables = self.to_linen()
        return layer.apply(variables, input, state, method="step", **options)
