"""A contender: an implementation of one operation, with what it computes and where it runs."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.speed.operations import Case

Function = Callable[..., tuple[Any, ...]]
"""A function from arrays by name (see `Case.arrays`) to outputs."""

Arrays = Mapping[str, np.ndarray]


class UnavailableError(Exception):
    """Raised if a contender cannot run here; the text is the reason."""


@dataclass(frozen=True)
class Restriction:
    """Calls to which a contender is restricted, because it computes another function elsewhere.

    Attributes:
        text: what it computes, and with which arrays it is judged.
        arrays: makes such arrays from the operation's arrays, by their names in `conformance`.
        differs: the gradients, by name, that differ even there and are not compared.
    """

    text: str
    arrays: Callable[[Arrays], dict[str, np.ndarray]]
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contender:
    """One implementation of one operation.

    Attributes:
        name: the name that is shown, ``torch_impl (torch)``.
        op: a name of `benchmarks.speed.operations.TIMED`.
        framework: ``torch``, ``jax`` or ``numpy``.
        load: returns the function for a case and one of ``choices``; raises `UnavailableError`.
        devices, dtypes: where it runs.
        choices: settings of which the fastest counts (chunk sizes).
        head_first: whether its arrays are (B, N, S, ·); they are transposed before any time is measured.
        options: options of the operation with which it always computes, by name.
        restriction: the calls for which it is judged; None if it computes the operation for all.
        differs: known faults or differences, and the directions that they affect. The contender is judged all the same,
            shown with this note, and timed although it does not conform.
    """

    name: str
    op: str
    framework: str
    load: Callable[[Case, Any], Function]
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    choices: tuple[Any, ...] = (None,)
    head_first: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    restriction: Restriction | None = None
    differs: tuple[str, tuple[str, ...]] | None = None

    @property
    def own(self) -> bool:
        return self.name.startswith(("torch_impl", "jax_impl"))

    def why_not(self, case: Case, device: str) -> str | None:
        """The reason why it does not take part in a case; None if it does."""
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} only"
        if case.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)} only"
        return None

    def transposed(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Arrays of the specification in the layout of this contender, or the other way round."""
        return {name: x.swapaxes(1, 2) if self.head_first else x for name, x in arrays.items()}


def imported(module: str, package: str | None = None) -> Any:
    """Import a module of a peer's package.

    Raises:
        UnavailableError: the package is not installed, or cannot be imported here.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            raise UnavailableError(f"{name} is not installed; pip install {name.replace('_', '-')}") from error
        raise UnavailableError(f"{name} does not import here: {str(error).splitlines()[0]}") from error
    except Exception as error:
        raise UnavailableError(f"{module} fails on import: {type(error).__name__}: {error}") from error
