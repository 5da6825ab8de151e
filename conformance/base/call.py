"""A call of an operation: the one argument of everything that makes, records or writes down calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.base.dtypes import FLOATING, Array


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of an operation.

    Attributes:
        operation: the public name of the operation.
        arrays: the arrays by name; of a call that should be refused, they need not all be arrays.
        options: only the options that the call passes.
        cotangents: the cotangents of the outputs; none if no gradient is taken.
        steps: the number of steps of its longest sequence.
    """

    operation: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    cotangents: Mapping[str, Array] = field(default_factory=dict)
    steps: int = 1

    @property
    def primals(self) -> tuple[str, ...]:
        """The arrays that have a gradient."""
        return tuple(name for name, x in self.arrays.items() if x.dtype in FLOATING)

    def with_options(self, **options: Any) -> "Call":
        """The call with these options in addition."""
        return replace(self, options={**self.options, **options})

    def with_arrays(self, **arrays: Any) -> "Call":
        """The call with these arrays in place of its own, or in addition."""
        return replace(self, arrays={**self.arrays, **arrays})

    def changed(self, change: Callable[[str, Array], Array]) -> "Call":
        """The call with every array, and every cotangent, changed.

        Args:
            change: the array that takes the place of the one with this name.
        """
        arrays, cotangents = (
            {name: change(name, x) for name, x in of.items()} for of in (self.arrays, self.cotangents)
        )
        return replace(self, arrays=arrays, cotangents=cotangents)
