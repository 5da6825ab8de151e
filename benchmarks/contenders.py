"""The contenders: our own functions and the peers', one row each with what it computes and where it runs."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case

Function = Callable[..., tuple[Any, ...]]
"""A function from arrays by name (see `Case.arrays`) to outputs; a GRU takes its weights and projections by name."""


class UnavailableError(Exception):
    """Raised if a contender cannot run here; the text is the reason."""


@dataclass(frozen=True)
class Contender:
    """One implementation of one operation.

    Attributes:
        name: the name that is shown, ``torch_impl (torch)``.
        op: one of `benchmarks.cases.OPS`.
        framework: ``torch``, ``jax`` or ``numpy``.
        load: returns the function for a case and one of ``choices``; raises `UnavailableError`.
        devices, dtypes: where it runs.
        choices: settings of which the fastest counts (chunk sizes).
        head_first: whether its arrays are (B, N, S, ·); they are transposed before any time is measured.
        eps: added to the normaliser.
        reset_after: whether it applies a GRU's reset gate after the product with the state. That is the same function
            only if the candidate's weight is diagonal, and it is judged with such a weight.
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
    eps: float = 0.0
    reset_after: bool = False
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


PEERS = ("mlstm_kernels", "fla", "torch_gru", "flax_gru", "keras_gru", "flashrnn")
"""Other packages (`benchmarks.rows.public`), by the names that ``--peers`` takes."""

YARDSTICKS = ("products", "loops", "reference")
"""Modules of `benchmarks.rows` with the yardsticks of goals: products alone, a loop under autograd, the oracle."""


def contenders(op: str, peers: tuple[str, ...]) -> list[Contender]:
    """Our own contenders and those of ``peers`` for an operation; no package is imported yet."""
    public = importlib.import_module("benchmarks.rows.public").CONTENDERS
    found = [
        public[name] if name in public else importlib.import_module(f"benchmarks.rows.{name}").CONTENDERS
        for name in ("ours", *peers)
    ]
    return [contender for each in found for contender in each if contender.op == op]


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
