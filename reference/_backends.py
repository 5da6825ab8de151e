"""The only backend of the reference, NumPy, and the function that explains the choice of it."""

import importlib
from enum import Enum
from typing import Any

import numpy as np

from reference._arrays import NUMPY
from reference.arguments import Call, dtype_name
from reference.backends import Explanation, Request, Row, check_explained_call, explain, known_backend, select


class KernelBackend(Enum):
    """The code that computes an operation."""

    numpy = "numpy"


OPERATIONS = (
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "mlstm",
    "mlstm_step",
    "fwbw_forward",
    "gru",
    "slstm",
    "slstm_step",
    "simple_gla",
    "gla",
    "gated_delta_rule",
    "gated_delta_step",
    "kimi_delta_attention",
)
ROWS = tuple(Row(backend="numpy", operation=operation, devices=("cpu",)) for operation in OPERATIONS)


def choose(call: Call, values: np.ndarray, requested: Any, packed: bool = False) -> KernelBackend:
    """Return the backend for a checked call; raise if the requested one does not support it."""
    return select(ROWS, Request(call.function, "cpu", dtype_name(values), call.sizes, packed), requested, KernelBackend)


def explain_backend(name: str, *args: Any, **kwargs: Any) -> Explanation:
    """The backend that a call would take, and the reason against each other backend. Here it is always NumPy.

    Args:
        name: the name of a public operation.
        args, kwargs: the arguments of that call.

    Returns:
        The explanation; ``chosen`` is ``KernelBackend.numpy``.

    Raises:
        TypeError: an argument is missing or does not belong to the operation, or no argument is an array.
        ValueError: no operation, or no backend, has that name.
    """
    if not isinstance(name, str) or name not in OPERATIONS:
        raise ValueError(f"explain_backend: `name` is {name!r}; expected one of {', '.join(OPERATIONS)}")
    operation = getattr(importlib.import_module("reference"), name)
    known_backend(name, kwargs.get("kernel_backend"), KernelBackend)
    check_explained_call(name, operation, args, kwargs)
    values = next((x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray)), None)
    if values is None:
        raise TypeError(f"explain_backend: no argument of {name} is {NUMPY.array}")
    return explain(ROWS, Request(name, "cpu", dtype_name(values)), KernelBackend)
