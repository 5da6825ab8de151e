"""The backends of this package, and the rows with what each of them supports and the code that computes it."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from reference.arguments import Call, dtype_name
from reference.backends import (
    Explanation,
    Request,
    Row,
    check_explained_call,
    explain,
    known_backend,
    select,
)
from torch_impl._decay import composed as decay
from torch_impl._decay.triton import autograd as decay_kernels
from torch_impl._gru import composed as gru
from torch_impl._gru.triton import launch as gru_kernels
from torch_impl._mlstm import composed as mlstm
from torch_impl._mlstm.triton import launch as mlstm_kernels
from torch_impl._scan import composed as scan
from torch_impl._scan.triton import autograd as scan_kernels


class KernelBackend(Enum):
    """The code that computes an operation: ``torch`` is composed PyTorch on any device, ``triton`` a kernel."""

    torch = "torch"
    triton = "triton"


KERNELS = (*mlstm_kernels.ROWS, *gru_kernels.ROWS, *scan_kernels.ROWS, *decay_kernels.ROWS)
COMPOSED = (*mlstm.ROWS, *gru.ROWS, *scan.ROWS, *decay.ROWS)

_REQUESTS: dict[str, Callable[..., Request]] = {}


def request(call: Call, values: torch.Tensor, packed: bool = False) -> Request:
    """The request of a checked call to the backends."""
    return Request(call.function, values.device.type, dtype_name(values), call.sizes, packed)


def _rows(asked: Request) -> tuple[Row, ...]:
    """The rows, preferred ones first: kernels, except on the CPU, where an interpreter runs them only for tests."""
    return (*COMPOSED, *KERNELS) if asked.device == "cpu" else (*KERNELS, *COMPOSED)


def choose(asked: Request, requested: Any) -> KernelBackend:
    """Return the backend that a call takes; raise if the requested one cannot serve it."""
    return select(_rows(asked), asked, requested, KernelBackend)


def implementations(operation: str) -> dict[str, Any]:
    """The code that computes an operation, by backend, from the rows."""
    return {row.backend: row.implementation for row in (*COMPOSED, *KERNELS) if row.operation == operation}


def explains(name: str) -> Callable:
    """Register the request builder of an operation, a function with the operation's own arguments."""

    def register(builder: Callable[..., Request]) -> Callable[..., Request]:
        _REQUESTS[name] = builder
        return builder

    return register


def explain_backend(name: str, *args: Any, **kwargs: Any) -> Explanation:
    """The backend that a call would take, and the reason against each other backend.

    Args:
        name: the name of an operation with kernel backends.
        args, kwargs: the arguments of that call; they are checked as the call would check them. A backend that they
            name is explained whether or not it could serve the call.

    Returns:
        The chosen backend and, for every other backend with a row, the reason against it.

    Raises:
        TypeError, ValueError: no operation has that name, or the call itself would raise.
    """
    if name not in _REQUESTS:
        raise ValueError(f"explain_backend: `name` is {name!r}; expected one of {', '.join(_REQUESTS)}")
    known_backend(name, kwargs.pop("kernel_backend", None), KernelBackend)
    check_explained_call(name, _REQUESTS[name], args, kwargs)
    asked = _REQUESTS[name](*args, **kwargs)
    return explain(_rows(asked), asked, KernelBackend)
