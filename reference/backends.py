"""The capabilities of kernel backends as data: one row per backend and operation, and the choice among the rows.

Dispatch, error messages, tests and the README's table all read these rows, so they cannot disagree.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reference import _proofs
from reference._proofs import Proof, read_proofs

__all__ = [
    "Explanation",
    "Proof",
    "Request",
    "Row",
    "check_explained_call",
    "explain",
    "known_backend",
    "no_kernel",
    "read_proofs",
    "select",
    "with_proofs",
]


@dataclass(frozen=True)
class Request:
    """The requirements of a call on a backend.

    Attributes:
        operation: the public name, ``"mlstm"``.
        device: the arrays' own device type, ``"cpu"``, ``"cuda"``, ``"tpu"``.
        dtype: the name of the values' dtype, ``"bfloat16"``.
        sizes: the letters of the contract, ``{"B": 2, "S": 7, ...}``.
        packed: whether ``cu_seqlens`` was passed.
        architecture: the architecture of the arrays' GPU, for which kernels are compiled, ``"sm_90"``; empty for other
            devices.
        versions: the versions of the packages that evidence about kernels is compared by.
        options: the options that the call gives and that a kernel may lack (`reference.arguments.Call.option`).
    """

    operation: str
    device: str
    dtype: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    packed: bool = False
    architecture: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """The support of one backend for one operation; an empty tuple means no restriction.

    Attributes:
        backend: the backend's name.
        operation: the public operation.
        devices: the device types that it runs on.
        dtypes: the dtypes that it takes.
        largest: the largest size that it takes for a letter, ``(("K", 512), ("V", 512))``.
        packed: whether it takes packed sequences.
        unavailable: returns the reason why the backend cannot run in this process (a missing package or interpreter),
            or None if it can.
        options: the options of `Request.options` that a kernel takes. Composed code, which has no ``proofs``, takes
            all, so that a kernel refuses a new option until it has it.
        implementation: the code that computes the operation on this backend; its type is up to the package.
        proofs: the runs on hardware that a kernel has passed for this operation; None for composed code, which needs
            none.
    """

    backend: str
    operation: str
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    largest: tuple[tuple[str, int], ...] = ()
    packed: bool = True
    unavailable: Callable[[Request], str | None] | None = None
    options: tuple[str, ...] = ()
    implementation: Any = None
    proofs: tuple[Proof, ...] | None = None

    def reasons(self, request: Request) -> list[str]:
        """The reasons why this row does not support ``request``; empty if it does."""
        reasons = []
        missing = self.unavailable(request) if self.unavailable else None
        if missing:
            reasons.append(missing)
        if self.devices and request.device not in self.devices:
            reasons.append(f"it runs on {' or '.join(self.devices)}, but the arrays are on {request.device}")
        if self.dtypes and request.dtype not in self.dtypes:
            reasons.append(f"it takes {', '.join(self.dtypes)}, but the values are {request.dtype}")
        for letter, most in self.largest:
            if request.sizes.get(letter, 0) > most:
                reasons.append(f"it takes {letter} up to {most}, but the call has {letter}={request.sizes[letter]}")
        if request.packed and not self.packed:
            reasons.append("it takes no packed sequences")
        if self.proofs is not None:
            reasons += [f"it takes no {option}" for option in request.options if option not in self.options]
        return reasons

    def proof(self, request: Request) -> Proof | None:
        """The evidence that this kernel is right for calls such as ``request``, if there is any."""
        covering = [
            proof for proof in self.proofs or () if proof.covers(request.dtype, request.architecture, request.versions)
        ]
        return covering[0] if covering else None

    def unproven(self, request: Request) -> str | None:
        """The reason why a call that names no backend does not use this row although it supports the call; None if it
        does.
        """
        if self.proofs is None or _proofs.ACCEPT_UNPROVEN or self.proof(request):
            return None
        if not self.proofs:
            return "no run on a GPU has proven it, so it is used only if the call names it"
        proven = [
            f"{', '.join(proof.dtypes)} on {_proofs.where(proof.architecture, proof.versions)}" for proof in self.proofs
        ]
        here = f"{request.dtype} on {_proofs.where(request.architecture, request.versions)}"
        return f"it is proven for {'; '.join(proven)}, but the call is {here}, so it is used only if the call names it"


def with_proofs(rows: Iterable[Row], proofs: Sequence[Proof]) -> tuple[Row, ...]:
    """Rows of kernels, each with the evidence about its own operation and backend."""
    return tuple(
        replace(
            row,
            proofs=tuple(proof for proof in proofs if (proof.operation, proof.backend) == (row.operation, row.backend)),
        )
        for row in rows
    )


@dataclass(frozen=True)
class Explanation:
    """The backend that a call takes, and the reasons for it and against the others.

    Attributes:
        chosen: the backend (a member of the implementation's ``KernelBackend``).
        against: for every other backend, the reason why it was not chosen.
        why: for a kernel, the evidence that allows a call to use it without naming it; empty for composed code, which
            needs none.
    """

    chosen: Any
    against: Mapping[Any, str]
    why: str = ""

    def __str__(self) -> str:
        against = (f"not {other.value}: {why}" for other, why in self.against.items())
        return "\n".join([f"takes {self.chosen.value}{self.why and ': '}{self.why}", *against])


def no_kernel(operation: str) -> str:
    """The reason against a backend that has no row for an operation."""
    return f"it has no kernel for {operation}"


def _names(backend_type: Any) -> list[str]:
    """The backends' names in order of definition, without iterating the class, which PyTorch 2.11 cannot trace."""
    return [backend_type[name].value for name in backend_type._member_names_]


def explain(rows: Iterable[Row], request: Request, backend_type: Any) -> Explanation:
    """Choose the first row, in order of preference, that supports ``request`` and has evidence or needs none.

    Args:
        rows: an implementation's rows, the preferred backend first.
        request: the call's requirements.
        backend_type: the implementation's ``KernelBackend``, an Enum whose values are the rows' names.

    Returns:
        The chosen backend, and the reasons against each other one.

    Raises:
        ValueError: no row supports the request; the message holds every row's reasons.
    """
    chosen, why, against = None, "", {}
    serving = [row for row in rows if row.operation == request.operation]
    for row in serving:
        reasons = "; ".join(row.reasons(request)) or (f"{chosen} is preferred" if chosen else row.unproven(request))
        if reasons:
            against[row.backend] = reasons
        else:
            chosen, why = row.backend, _why(row, request)
    for name in _names(backend_type):
        if name not in {row.backend for row in serving}:
            against[name] = no_kernel(request.operation)
    if chosen is None:
        why = "; ".join(f"{name}: {reason}" for name, reason in against.items())
        raise ValueError(f"{request.operation}: no kernel backend supports this call ({why})")
    return Explanation(backend_type(chosen), {backend_type(name): reason for name, reason in against.items()}, why)


def _why(row: Row, request: Request) -> str:
    if row.proofs is None:
        return ""
    if (proof := row.proof(request)) is None:
        return "GATESPEC_UNPROVEN_KERNELS=1 takes kernels that no run has proven"
    return f"proven on {_proofs.where(proof.architecture, proof.versions)} ({proof.device}, {proof.result})"


def check_explained_call(name: str, builder: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if ``explain_backend(name, …)`` got arguments that the operation does not have, or lacks some.

    Args:
        builder: a function with the operation's own arguments.
    """
    signature = inspect.signature(builder)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"explain_backend: the call of {name} has a wrong argument: {error}; expected {name}"
            f"({', '.join(signature.parameters)})"
        ) from None


def known_backend(operation: str, requested: Any, backend_type: Any) -> Any:
    """The backend that is requested by name or by its member of ``backend_type``, or None.

    Raises:
        TypeError: ``requested`` is neither None, a backend nor a backend's name.
        ValueError: there is no such backend.
    """
    if requested is None:
        return None
    names = " or ".join(_names(backend_type))
    if not isinstance(requested, backend_type | str):
        kind = type(requested).__name__
        raise TypeError(f"{operation}: `kernel_backend` is a {kind}; expected None, {names}")
    try:
        return backend_type(requested)
    except ValueError:
        raise ValueError(f"{operation}: `kernel_backend` is {requested!r}; expected None, {names}") from None


def select(rows: Iterable[Row], request: Request, requested: Any, backend_type: Any) -> Any:
    """The backend that a call takes: the requested one, or that of `explain`.

    Raises:
        TypeError: ``requested`` is neither None, a backend nor a backend's name.
        ValueError: there is no such backend, or it does not support the call; the message gives the reason.
    """
    backend = known_backend(request.operation, requested, backend_type)
    if backend is None:
        return explain(rows, request, backend_type).chosen
    serving = [row for row in rows if row.operation == request.operation and row.backend == backend.value]
    reasons = (
        [reason for row in serving for reason in row.reasons(request)] if serving else [no_kernel(request.operation)]
    )
    if reasons:
        why = "; ".join(reasons)
        raise ValueError(
            f"{request.operation}: `kernel_backend` is {backend.value}, which does not support this call: {why}"
        )
    return backend
