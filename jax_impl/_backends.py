"""The kernel backends of JAX: their capabilities, one row each, and the choice among them."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from jax_impl._arrays import platform
from jax_impl._gru.pallas import passes as gru
from jax_impl._mlstm.pallas import decode, sequence
from jax_impl._pallas import interpreted
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


class KernelBackend(Enum):
    """The code that computes an operation: array code that XLA compiles, or Pallas kernels."""

    xla = "xla"
    pallas = "pallas"

    def __str__(self) -> str:
        return self.value


ROWS = (
    *(Row(backend="xla", operation=operation) for operation in ("mlstm", "mlstm_step", "gru")),
    *(sequence.ROW, decode.ROW, gru.ROW),
)

_requests: dict[str, Callable[..., Request]] = {}


def request_builder(operation: str) -> Callable[[Callable[..., Request]], Callable[..., Request]]:
    """Register the function that checks an operation's arguments and returns the call's request."""

    def register(build: Callable[..., Request]) -> Callable[..., Request]:
        _requests[operation] = build
        return build

    return register


class Choice(NamedTuple):
    """The name of the backend that computes a call, and whether its Pallas kernels run under their interpreter."""

    name: str
    interpret: bool


def request(call: Call, values: Any, packed: bool = False) -> Request:
    """The request of a checked call: the device, dtype and sizes of its ``values``."""
    return Request(call.function, platform(values), dtype_name(values), call.sizes, packed)


def choose(asked: Request, requested: Any) -> Choice:
    """Return the backend that a call takes; raise if the requested one cannot serve it."""
    chosen = select(ROWS, asked, requested, KernelBackend)
    return Choice(name=chosen.value, interpret=chosen is KernelBackend.pallas and interpreted(asked.device))


def explain_backend(name: str, *args: Any, **kwargs: Any) -> Explanation:
    """The backend that a call would take, and the reason against each other backend.

    Args:
        name: an operation with a choice of backends: ``"mlstm"``, ``"mlstm_step"`` or ``"gru"``.
        args, kwargs: the arguments of that call; they may be traced. A backend that they name is explained whether or
            not it could serve the call.

    Returns:
        The chosen backend and the reasons, as an `Explanation`.

    Raises:
        TypeError, ValueError: as the call itself raises; also if no operation has that name.
    """
    if name not in _requests:
        known = ", ".join(repr(operation) for operation in _requests)
        raise ValueError(f"explain_backend: `name` is {name!r}; expected one of {known}")
    known_backend(name, kwargs.pop("kernel_backend", None), KernelBackend)
    check_explained_call(name, _requests[name], args, kwargs)
    asked = _requests[name](*args, **kwargs)
    return explain(ROWS, asked, KernelBackend)
