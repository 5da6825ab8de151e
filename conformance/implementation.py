"""What an implementation is.

An implementation maps named arrays to named arrays (`conformance.dtypes.Array`: values of a declared dtype), gives
gradients for given cotangents, and says why it cannot where it cannot. `conformance.frameworks` has one adapter for
each framework; each is imported when a target needs it.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from conformance.dtypes import Array

Named = Mapping[str, Array]
Results = dict[str, Array]


class UsageError(Exception):
    """The call of the suite was wrong; the text says what to do instead."""


class RefusedError(Exception):
    """The target says itself that it cannot serve a call (a kernel backend that does not run here)."""


class Implementation(Protocol):
    """A target, seen through its framework's adapter.

    Attributes:
        name: the target as it was given.
        framework: ``numpy``, ``torch`` or ``jax``.
        device: where its arrays live.
        functions: what it offers, by public name.
        eager: whether a call with new shapes costs no compilation.
        layouts: the memory layouts that the framework can express.
        upcasts: whether it computes and answers in float64 whatever came (the reference does).
    """

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

    def versions(self) -> dict[str, str]:
        """Versions of what computed."""
        ...

    def cannot(self, dtype: str) -> str | None:
        """Why arrays of ``dtype`` cannot be made, None where they can."""
        ...

    def no_gradient(self, operation: str) -> str | None:
        """Why ``operation`` has no gradient here, None where it has one."""
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

    def attempt(self, operation: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Make a call that ought to be refused, without compiling it; its exception travels on."""
        ...

    def impurities(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> list[str]:
        """What a call and its gradient did to their inputs and which of their results share memory, in words."""
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

    def on_axis(
        self, axis: str, devices: int, function: Callable[[dict[str, Any], Any], dict[str, Any]], arrays: list[Array]
    ) -> list[Results]:
        """What ``function(place, array)`` returns on each device of a mesh axis.

        Args:
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
