"""The interface of an implementation.

An implementation maps named arrays to named arrays (`conformance.dtypes.Array`: values of a declared dtype), returns
gradients for given cotangents, and gives the reason if it cannot. `conformance.frameworks` has one adapter per
framework; an adapter is imported when a target needs it.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.dtypes import Array

Named = Mapping[str, Array]
Results = dict[str, Array]


class UsageError(Exception):
    """The suite was called wrongly; the text says what to do instead."""


class RefusedError(Exception):
    """The target itself reports that it cannot serve a call (a kernel backend that does not run here)."""


class BrokenGraphError(Exception):
    """The framework's compiler cannot compile a call as one graph; its own error is the cause."""


@dataclass(frozen=True)
class Launches:
    """The kernels that one call and its backward pass launched, by name.

    Attributes:
        forward: the kernels that the call launched.
        backward: the kernels that the backward pass launched in addition.
    """

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


class Layer(Protocol):
    """A layer of a target: `GRU` or `mLSTMBackendFwbw`.

    Attributes:
        parameters: the initial parameters by path: ``state_weight``, ``input_projection.kernel`` (from features
            in to features out), ``input_projection.bias``.
    """

    @property
    def parameters(self) -> Results: ...

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        """The arrays that the layer returns, as a flat list, with these parameters instead of its own.

        Args:
            parameters: parameters by path, as in the attribute.
            arrays: the arrays by the keywords of the layer's call.
            options: the keywords that are not arrays.
        """
        ...

    def vjp(
        self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]
    ) -> tuple[list[Array], Results]:
        """Outputs, and the gradient with respect to every parameter and every floating-point array."""
        ...


class Implementation(Protocol):
    """A target, seen through its framework's adapter.

    Attributes:
        name: the name under which the target was given.
        framework: ``numpy``, ``torch`` or ``jax``.
        device: the device of its arrays.
        functions: its functions by public name.
        eager: whether a call with new shapes costs no compilation.
        layouts: the memory layouts that the framework supports, except ``broadcast``, which needs equal rows.
        upcasts: whether it computes and answers in float64 for every input dtype, as the reference does.
        tf32: whether the framework's own switch, as the target left it, lets products of float32 arrays use TF32
            operands.
        keeps_contract: whether the target declares itself gatespec's own. It must then follow the decisions of
            gatespec's contract where others may decide differently (laws of the kind ``contract``).
        backends: the names of kernel backends whose launches the adapter can observe, each with whether it launches
            any.
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
        """The versions of the packages that compute."""
        ...

    def with_functions(self, functions: Mapping[str, Any]) -> "Implementation":
        """The same adapter with other functions: a law's own functions, built on the target's."""
        ...

    def cannot(self, dtype: str) -> str | None:
        """The reason why arrays of ``dtype`` cannot be made; None if they can."""
        ...

    def no_gradient(self, operation: str) -> str | None:
        """The reason why ``operation`` has no gradient here; None if it has one."""
        ...

    def lacks(self, feature: str) -> str | None:
        """The reason why a law that needs ``feature`` does not apply; None if it does.

        Args:
            feature: ``layouts`` (arrays with strides that can be written to), ``far memory``, ``large grids``,
                ``poisoned``, ``second derivative``, ``layer gradient``, or a kind of `transformed`.
        """
        ...

    def call(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        """The outputs of a call without gradients."""
        ...

    def outputs(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        """The outputs of a call, computed in whichever way is cheapest."""
        ...

    def vjp(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> tuple[Results, Results]:
        """Outputs, and the gradient with respect to every floating-point array."""
        ...

    def attempt(self, operation: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
        """The outputs of a call that should be refused, made without compiling it; its exception is passed on."""
        ...

    def impurities(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> list[str]:
        """Descriptions of inputs that a call and its gradient changed, and of results that share memory."""
        ...

    def transformed(
        self, kind: str, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> tuple[Results, Results]:
        """Outputs and gradients, in the form of `vjp`, of the call under a transformation of the framework.

        Args:
            kind: ``compile`` (compiled if `vjp` is not, and vice versa), ``compile gradient`` (the gradient compiled
                together with the call), ``functional`` (the gradient by another method of the framework),
                ``checkpoint`` (nothing saved for the backward pass), or ``vmap``: over a new leading axis of every
                floating-point array, cotangent and result.
        """
        ...

    def second_derivative(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named, along: Named
    ) -> Results:
        """The gradient of ``Σ ⟨gradient of x, along x⟩`` with respect to every floating-point array and cotangent.

        Args:
            along: a direction for each floating-point array.

        Returns:
            Gradients by name; that of a cotangent is named ``cotangent of h``. Exceptions of the target are passed on.
        """
        ...

    def launched(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> Launches:
        """The kernels that a call and its backward pass launch."""
        ...

    def far_memory(self) -> AbstractContextManager[None]:
        """Inside this context, arrays may have the layout ``far 0``: more than 2³¹ elements lie between the first and
        the last along axis 0 (or another axis that is named in this way)."""
        ...

    def poisoned(self) -> AbstractContextManager[None]:
        """Inside this context, memory that the framework allocates without writing to it holds NaN."""
        ...

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        """A layer of the target.

        Args:
            name: ``GRU`` or ``mLSTMBackendFwbw``.
            settings: the keywords of its constructor.
            seed: the seed of its parameters.
        """
        ...

    def overlap(self, x: Any, y: Any) -> bool:
        """Whether two of the framework's own arrays share memory."""
        ...

    def run(self, key: Hashable, function: Callable[[dict[str, Any]], dict[str, Any]], arrays: Named) -> Results:
        """Run a function of the framework's own arrays by name; if the framework compiles, once per ``key``."""
        ...

    def rng(self, seed: int) -> Any:
        """A random state in the form that the framework's functions take."""
        ...

    def drawn(self, rng: Any) -> Any:
        """An array of the framework that distinguishes one random state from another."""
        ...

    def on_mesh(
        self,
        axes: Mapping[str, int],
        function: Callable[[dict[str, Any], Any], dict[str, Any]],
        arrays: list[Array],
    ) -> list[Results]:
        """The results of ``function(place, array)`` on each device of a mesh.

        Args:
            axes: the mesh's axes and the number of devices on each; the first axis varies slowest.
            function: takes the keywords that tell a sharding function where it runs, and the device's own array.
            arrays: one array per device.
        """
        ...

    def native(self, array: Array) -> Any:
        """The framework's own array."""
        ...

    def neutral(self, array: Any) -> Array:
        """A framework's array as an `Array`."""
        ...
