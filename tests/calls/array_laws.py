"""No result of an operation shares memory with an argument or with another result."""

from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.laws._answers import lacking
from conformance.laws.checker import Checker, LawError
from conformance.operations import OPERATIONS, Operation
from tests.calls.registry import law


def sharing(operation: Operation, checker: Checker, case: Any) -> None:
    """No result shares memory with an argument or with another result.

    memory({op}(x)) ∩ memory(x) = ∅
    """
    call = operation.call_of(case, checker.dtype)
    found = checker.served(checker.implementation.shared, checker.on_backend(call))
    if found:
        raise LawError("", "; ".join(found[:4]), nature="memory")


for _operation in OPERATIONS.values():
    law(
        _operation,
        "contract",
        cases=lambda limits, of=_operation: st.one_of(*map(st.just, of.stepless), of.all_cases(limits)),
        share=0.5,
        skip=partial(lacking, "layouts"),
    )(partial(sharing, _operation))
