"""The backends of this package, and the rows with what each of them supports and the code that computes it."""

from collections.abc import Callable, Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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
    read_proofs,
    select,
    with_proofs,
)
from torch_impl._decay import composed as decay
from torch_impl._decay.triton import autograd as decay_kernels
from torch_impl._gated_delta_rule import composed as gated_delta_rule
from torch_impl._gru import composed as gru
from torch_impl._gru.triton import launch as gru_kernels
from torch_impl._mlstm import composed as mlstm
from torch_impl._mlstm.triton import launch as mlstm_kernels
from torch_impl._scan import composed as scan
from torch_impl._scan.triton import autograd as scan_kernels
from torch_impl._slstm import composed as slstm
from torch_impl._slstm.triton import launch as slstm_kernels


class KernelBackend(Enum):
    """The code that computes an operation: ``torch`` is composed PyTorch on any device, ``triton`` a kernel."""

    torch = "torch"
    triton = "triton"


def _versions() -> dict[str, str]:
    """The versions of PyTorch and Triton, which AMD's wheels distribute under names of their own."""
    for name in ("triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return {"torch": str(torch.__version__), "triton": version(name)}
        except PackageNotFoundError:
            continue
    return {"torch": str(torch.__version__)}


VERSIONS = _versions()
"""The versions by which evidence about kernels is compared."""

KERNELS = with_proofs(
    (*mlstm_kernels.ROWS, *slstm_kernels.ROWS, *gru_kernels.ROWS, *scan_kernels.ROWS, *decay_kernels.ROWS),
    read_proofs(Path(__file__).with_name("proofs.json")),
)
COMPOSED = (*mlstm.ROWS, *slstm.ROWS, *gru.ROWS, *gated_delta_rule.ROWS, *scan.ROWS, *decay.ROWS)

_REQUESTS: dict[str, Callable[..., Request]] = {}


def request(call: Call, values: torch.Tensor, packed: bool = False) -> Request:
    """The request of a checked call to the backends."""
    return request_of(call.function, values, call.sizes, packed, call.options)


def request_of(
    operation: str,
    values: torch.Tensor,
    sizes: Mapping[str, int],
    packed: bool = False,
    options: tuple[str, ...] = (),
) -> Request:
    """The request of an operation on arrays that lie where ``values`` do and have their dtype."""
    return Request(
        operation=operation,
        device=values.device.type,
        dtype=dtype_name(values),
        sizes=sizes,
        packed=packed,
        architecture=architecture(values.device) if values.device.type == "cuda" else "",
        versions=VERSIONS,
        options=options,
    )


def architecture(device: torch.device) -> str:
    """The architecture of a GPU, for which kernels are compiled: ``"sm_90"`` or ``"gfx942"``; empty for a device that
    is not present.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return ""
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


# As in `_operators`: a compiler that traces a call takes the answer as a constant, as the device is one.
architecture._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _rows(asked: Request) -> tuple[Row, ...]:
    """The rows, preferred ones first: kernels, except on the CPU, where an interpreter runs them only for tests.

    A call that names no backend takes a kernel only with evidence (`reference.backends.Row.unproven`).
    """
    return (*COMPOSED, *KERNELS) if asked.device == "cpu" else (*KERNELS, *COMPOSED)


def choose(asked: Request, requested: Any) -> KernelBackend:
    """Return the backend that a call takes; raise if the requested one does not support it."""
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
            name is explained whether or not it supports the call.

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
