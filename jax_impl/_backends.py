"""The kernel backends of JAX: their capabilities, one row each, and the choice among them."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jax_impl._arrays import architecture, platform
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
    read_proofs,
    select,
    with_proofs,
)


class KernelBackend(Enum):
    """The code that computes an operation: array code that XLA compiles, or Pallas kernels."""

    xla = "xla"
    pallas = "pallas"

    def __str__(self) -> str:
        return self.value


COMPOSED = tuple(
    Row(backend="xla", operation=operation)
    for operation in ("mlstm", "mlstm_step", "slstm", "slstm_step", "gru", "gated_delta_rule", "gated_delta_step")
)
KERNELS = with_proofs((sequence.ROW, decode.ROW, gru.ROW), read_proofs(Path(__file__).with_name("proofs.json")))

VERSIONS = {"jax": jax.__version__}
"""The versions by which evidence about kernels is compared."""

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
    return Request(
        operation=call.function,
        device=platform(values),
        dtype=dtype_name(values),
        sizes=call.sizes,
        packed=packed,
        architecture=architecture(values),
        versions=VERSIONS,
        options=call.options,
    )


def _rows(asked: Request) -> tuple[Row, ...]:
    """The rows, preferred ones first: kernels, except on the CPU, where an interpreter runs them only for tests.

    A call that names no backend takes a kernel only with evidence (`reference.backends.Row.unproven`).
    """
    return (*COMPOSED, *KERNELS) if asked.device == "cpu" else (*KERNELS, *COMPOSED)


def choose(asked: Request, requested: Any) -> Choice:
    """Return the backend that a call takes; raise if the requested one does not support it."""
    chosen = select(_rows(asked), asked, requested, KernelBackend)
    return Choice(name=chosen.value, interpret=chosen is KernelBackend.pallas and interpreted(asked.device))


def explain_backend(name: str, *args: Any, **kwargs: Any) -> Explanation:
    """The backend that a call would take, and the reason against each other backend.

    Args:
        name: an operation with a choice of backends: such as ``"mlstm"`` or ``"gru"``.
        args, kwargs: the arguments of that call; they may be traced. A backend that they name is explained whether or
            not it supports the call.

    Returns:
        The chosen backend and the reasons, as an `Explanation`.

    Raises:
        TypeError, ValueError: as the call itself raises; also if no operation has that name.
    """
    if not isinstance(name, str) or name not in _requests:
        known = ", ".join(repr(operation) for operation in _requests)
        raise ValueError(f"explain_backend: `name` is {name!r}; expected one of {known}")
    known_backend(name, kwargs.pop("kernel_backend", None), KernelBackend)
    check_explained_call(name, _requests[name], args, kwargs)
    asked = _requests[name](*args, **kwargs)
    return explain(_rows(asked), asked, KernelBackend)
