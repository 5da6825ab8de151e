"""The first call of a process, captured in a CUDA graph, when nothing that is prepared once has been prepared yet."""

from functools import partial
from typing import Any

from conformance.laws._answers import lacking
from conformance.laws._relations import results_of, same_results
from conformance.laws.checker import Checker
from conformance.operations import OPERATIONS, Operation
from tests.calls.first_call import in_new_process
from tests.calls.registry import law

FIRST = "graph at the first call"


def graph_first_call(operation: Operation, checker: Checker, case: Any) -> None:
    """The first call in a process, captured in a CUDA graph, raises or gives the right results on replay.

    replay(capture(f, x), x′) = (f(x′), df(x′)), or an error at the capture
    """
    call = operation.call_of(case, checker.dtype)
    results = in_new_process(checker.implementation, FIRST, checker.on_backend(call))
    if results is not None:
        same_results(operation, checker, case, call, results, results_of(checker, call))


for _operation in OPERATIONS.values():
    law(
        _operation,
        "behaviour",
        rows=lambda of=_operation: list(of.rows[:1]),
        gradient=_operation.name,
        skip=partial(lacking, FIRST),
    )(partial(graph_first_call, _operation))
