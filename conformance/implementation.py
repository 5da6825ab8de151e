"""What an implementation is.

An implementation maps named arrays to named arrays (`conformance.dtypes.Array`: values of a declared dtype), gives
gradients for given cotangents, and says why it cannot where it cannot. `conformance.frameworks` has one adapter for
each framework; each is imported when a target needs it.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.dtypes import Array

Named = Mapping[str, Array]
Results = dict[str, Array]


class UsageError(Exception):
    """The call of the suite was wrong; the text says what to do instead."""


class RefusedError(Exception):
    """The target says itself that it cannot serve a call (a kernel backend that does not run here)."""


class BrokenGraphError(Exception):
    """The framework's compiler cannot take a call as one graph; its own error is the cause."""


@dataclass(frozen=True)
class Launches:
    """The kernels that one call and its backward pass launched, by name.

    Attributes:
        forward: by the call.
        backward: by the backward pass, beyond those of the call.
    """

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


class Layer(Protocol):
    """A layer of a target: `GRU` or `mLSTMBackendFwbw`.

    Attributes:
        parameters: as the layer initialised them, by path: ``state_weight``, ``input_projection.kernel`` (from features
            in to features out), ``input_projection.bias``.
    """

    @property
    def parameters(self) -> Results: ...

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        """The arrays that the layer returns, flat, with these parameters in place of its own.

        Args:
            arrays: by keyword of the layer's call.
            options: keywords that are no arrays.
        """
        ...

    def vjp(
        self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]
    ) -> tuple[list[Array], Results]:
        """Outputs, and the gradient with respect to every parameter and every floating array."""
        ...


class Implementation(Protocol):
    """A target, seen through its framework's adapter.

    Attributes:
        name: the target as it was given.
        framework: ``numpy``, ``torch`` or ``jax``.
        device: where its arrays live.
        functions: what it offers, by public name.
        eager: whether a call with new shapes costs no compilation.
        layouts: the memory layouts that the framework can express, but for ``broadcast``, which needs equal rows.
        upcasts: whether it computes and answers in float64 whatever came (the reference does).
        tf32: whether the framework's own switch lets products of float32 arrays take their operands as TF32, as the
            target left it.
        keeps_contract: whether the target declares itself gatespec's own, so that it has to keep what gatespec has
            decided where others may decide otherwise (laws of the kind ``contract``).
        backends: the names of kernel backends whose launches the adapter can see, each with whether it launches any.
    """

    keeps_contract: bool

    @property
    def name(self) -> str: ...

    @property
    def framework(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def functions(self) -> Mapping[str, Any]: ...

    @property
    def eager(self) -> bool: ...

    @property
    def layouts(self) -> tuple[str, ...]: ...

    @property
    def upcasts(self) -> bool: ...

    @property
    def tf32(self) -> bool: ...

    @property
    def backends(self) -> Mapping[str, bool]: ...

    def versions(self) -> dict[str, str]:
        """Versions of what computed."""
        ...

    def with_functions(self, functions: Mapping[str, Any]) -> "Implementation":
        """The same adapter over other functions: a law's own, made of the target's."""
        ...

    def cannot(self, dtype: str) -> str | None:
        """Why arrays of ``dtype`` cannot be made, None where they can."""
        ...

    def no_gradient(self, operation: str) -> str | None:
        """Why ``operation`` has no gradient here, None where it has one."""
        ...

    def lacks(self, feature: str) -> str | None:
        """Why a law that needs ``feature`` does not apply, None where it does.

        Args:
            feature: ``layouts`` (arrays with strides, that can be written to), ``far memory``, ``large grids``,
                ``poisoned``, ``second derivative``, ``layer gradient``, or a kind of `transformed`.
        """
        ...

    def call(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        """The outputs of a call, computed without any gradient being asked for."""
        ...

    def outputs(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        """The outputs of a call, computed in whichever way costs least."""
        ...

    def vjp(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> tuple[Results, Results]:
        """Outputs, and the gradient with respect to every floating array."""
        ...

    def attempt(self, operation: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
        """The outputs of a call that ought to be refused, made without compiling it; its exception travels on."""
        ...

    def impurities(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> list[str]:
        """What a call and its gradient did to their inputs and which of their results share memory, in words."""
        ...

    def transformed(
        self, kind: str, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> tuple[Results, Results]:
        """Outputs and gradients, as `vjp` gives them, of the call under a transformation of the framework.

        Args:
            kind: ``compile`` (compiled where `vjp` is not, and the other way round), ``compile gradient`` (the gradient
                compiled with the call), ``functional`` (the gradient taken by another of the framework's means),
                ``checkpoint`` (nothing kept for the backward pass), or ``vmap``: over a new leading axis, which every
                floating array, cotangent and result has.
        """
        ...

    def second_derivative(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named, along: Named
    ) -> Results:
        """The gradient of ``Σ ⟨gradient of x, along x⟩`` with respect to every floating array and every cotangent.

        Args:
            along: a direction for each floating array.

        Returns:
            By name; of a cotangent under ``cotangent of h``. Whatever the target raises instead travels on.
        """
        ...

    def launched(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> Launches:
        """The kernels that a call and its backward pass launch."""
        ...

    def far_memory(self) -> AbstractContextManager[None]:
        """While it is open, arrays may be laid out as ``far 0``: more than 2³¹ elements lie between the first and the
        last along axis 0 (or another that is named so)."""
        ...

    def poisoned(self) -> AbstractContextManager[None]:
        """While it is open, memory that the framework allocates without writing to it holds NaN."""
        ...

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        """A layer of the target.

        Args:
            name: ``GRU`` or ``mLSTMBackendFwbw``.
            settings: the keywords that make it.
            seed: from which its parameters are drawn.
        """
        ...

    def overlap(self, x: Any, y: Any) -> bool:
        """Whether two arrays of the framework's own share memory."""
        ...

    def run(self, key: Hashable, function: Callable[[dict[str, Any]], dict[str, Any]], arrays: Named) -> Results:
        """A function of the framework's own arrays, by name, compiled once per ``key`` where the framework compiles."""
        ...

    def rng(self, seed: int) -> Any:
        """A random state as the framework's functions take it."""
        ...

    def drawn(self, rng: Any) -> Any:
        """An array of the framework's that tells one random state from another."""
        ...

    def on_mesh(
        self,
        axes: Mapping[str, int],
        function: Callable[[dict[str, Any], Any], dict[str, Any]],
        arrays: list[Array],
    ) -> list[Results]:
        """What ``function(place, array)`` returns on each device of a mesh.

        Args:
            axes: the mesh's axes and how many devices each has; the first varies slowest.
            function: takes the keywords that say to a sharding function where it runs, and the device's own array.
            arrays: one for each device.
        """
        ...

    def native(self, array: Array) -> Any:
        """The framework's own array."""
        ...

    def neutral(self, array: Any) -> Array:
        """A framework's array as an `Array`."""
        ...
