"""Laws of the operations with kernel backends: the requested one runs, and one that cannot run is refused."""

import inspect
from functools import partial
from typing import Any

from conformance.frameworks.implementation import RefusedError
from conformance.laws import UP_TO_BFLOAT16
from conformance.laws._answers import expect_value, of_rows
from conformance.laws._mlstm_kernel_limits import explained
from conformance.laws.checker import Checker, LawError
from conformance.operations import OPERATIONS, Operation
from tests.calls.packages import Launches
from tests.calls.refusals import BadUse, register_uses
from tests.calls.registry import law


def _registered(operation: Operation) -> None:
    law(
        operation,
        "contract",
        cases=of_rows(operation),
        dtypes=UP_TO_BFLOAT16,
        compiled_dtypes=("float32", "bfloat16"),
        share=0.1,
        skip=partial(_no_choice, operation.name),
    )(partial(backend, operation))
    register_uses(
        operation.about,
        "A kernel backend that does not exist, or that is not a name, raises the reference's error.",
        lambda: [
            BadUse(operation.name, label, partial(_named, operation, name), until="expected None")
            for label, name in (("an unknown kernel backend", "no such backend"), ("a number for one", 3))
        ],
        needs=(operation.name,),
        name="bad_backend",
        equation="error(target) = error(reference), up to the names of backends",
        skip=partial(_no_choice, operation.name),
    )


def _no_choice(operation: str, implementation: Any) -> str | None:
    try:
        takes = "kernel_backend" in inspect.signature(implementation.functions[operation]).parameters
    except ValueError:
        return None
    return None if takes else f"{operation} takes no kernel_backend here"


def _named(operation: Operation, name: Any, implementation: Any) -> None:
    implementation.attempt(operation.call_of(operation.rows[0], "float32").with_options(kernel_backend=name))


def backend(operation: Operation, checker: Checker, case: Any) -> None:
    """A call that names a kernel backend runs it, with no kernels of others, or raises with the reason that
    explain_backend gives; a call without a name runs the one that explain_backend says.

    launched(kernel_backend=b) ≠ ∅ ⇔ b is a kernel's
    """
    call = operation.call_of(case, checker.dtype)
    asked, launched = checker.implementation.kernel_backend, checker.implementation.launched
    if "explain_backend" in checker.implementation.functions:
        chosen, against = explained(checker, operation, call)
        if asked is None:
            _expect_launches(checker, chosen, launched(call), "taken unasked")
    elif asked is None:
        raise RefusedError("it offers no explain_backend, and --kernel-backend names no backend")
    else:
        chosen, against = asked, {}
    for name in (chosen, *against) if asked is None else (asked,):
        on_it = call.with_options(kernel_backend=name)
        try:
            launches = launched(on_it)
        except ValueError as error:
            _expect_reason(name, chosen, against, str(error))
            if name == asked:
                raise RefusedError(str(error)) from error
            continue
        _expect_launches(checker, name, launches, "asked for")
        if checker.implementation.eager:
            expect_value(operation, checker, case, call, checker.implementation.call(on_it))


def _expect_reason(backend: str, chosen: str, against: dict[str, str], said: str) -> None:
    if "`kernel_backend`" not in said:
        raise LawError(backend, f"was asked for and raised {said[:200]!r}, which does not mention `kernel_backend`")
    if backend in against:
        if against[backend] not in said:
            raise LawError(backend, f"was refused with {said[:200]!r}; explain_backend gives {against[backend]!r}")
    elif backend == chosen and against:
        raise LawError(backend, f"was refused with {said[:200]!r}; explain_backend says that it is taken")


def _expect_launches(checker: Checker, backend: str, launches: Launches, how: str) -> None:
    has_kernels = checker.implementation.backends.get(backend)
    if has_kernels is None:
        return
    parts = {"the call": launches.forward}
    if checker.implementation.framework != "numpy":
        parts["its backward pass"] = launches.backward
    for part, names in parts.items():
        if has_kernels and not names:
            raise LawError(backend, f"was {how}, and {part} launched no kernel")
        if names and not has_kernels:
            raise LawError(backend, f"was {how}, and {part} launched {', '.join(sorted(set(names)))}")


for _operation in OPERATIONS.values():
    if _operation.takes("kernel_backend"):
        _registered(_operation)
