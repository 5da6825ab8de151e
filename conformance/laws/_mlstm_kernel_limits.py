"""Sizes of m at which docs/spec.md allows gatespec's own kernels to return NaN, although gates are finite."""

from collections.abc import Callable
from typing import Any

from conformance.base.call import Call
from conformance.base.dtypes import ROUNDOFF
from conformance.laws.checker import Checker
from conformance.operations import Operation

BELOW = {"mlstm": {"triton": 2.0**28}, "mlstm_step": {"triton": 2.0**28, "pallas": 8e7}}
"""By operation and kernel backend, the |m| from which on its results are finite."""

REPRESENTABLE = 16.0
"""S·u·max|m| up to which every backend keeps a memory."""


def limit(operation: Operation, checker: Checker, call: Call) -> float:
    """The |m| from which on results must be finite; 0 for all but gatespec's own kernels."""
    from conformance.frameworks.targets import declares_contract

    implementation, limits = checker.implementation, BELOW[operation.name]
    if not declares_contract(getattr(implementation.functions[operation.name], "__module__", None) or ""):
        return 0.0
    backend = implementation.kernel_backend
    if backend is None and "explain_backend" in implementation.functions:
        backend, _ = explained(checker, operation, call)
    return limits.get(backend or "", 0.0)


def required(sizes: tuple[float, ...], below: float, steps: int, dtype: str, times: int = 1) -> tuple[float, ...]:
    """The sizes of gates at which results must be finite.

    Args:
        below: the |m| from which on they must be.
        steps: S.
        times: how many times a size |m| may become.
    """
    unit = steps * ROUNDOFF[dtype]
    return tuple(size for size in sizes if size >= below or unit * times * size <= REPRESENTABLE)


def explained(checker: Checker, operation: Operation, call: Call) -> tuple[str, dict[str, str]]:
    """The backend that a call takes according to explain_backend, and the reason against each other one, by name."""
    explain: Callable = checker.implementation.functions["explain_backend"]
    found: list[Any] = []

    def ask(*args: Any, **kwargs: Any) -> Any:
        found.append(explain(operation.name, *args, **kwargs))
        raise _AskedError

    natives = {name: checker.implementation.native(x) for name, x in call.arrays.items()}
    try:
        operation.call(ask, natives, call.options)
    except _AskedError:
        pass
    (explanation,) = found
    return _name(explanation.chosen), {_name(backend): why for backend, why in explanation.against.items()}


class _AskedError(Exception):
    """Ends a call that should only be explained."""


def _name(backend: Any) -> str:
    return str(getattr(backend, "value", backend))
