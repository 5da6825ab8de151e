"""Laws of every operation about faults of kernels: 32-bit offsets, large grids, streams, captured graphs."""

from functools import partial
from typing import Any

from conformance.frameworks.implementation import RefusedError
from conformance.laws import _large_grids, law
from conformance.laws._answers import lacking, laid_out, of_rows, transformed
from conformance.laws._relations import alike_in_another_way, results_of, same_results
from conformance.laws.checker import Checker
from conformance.operations import Operation

_ON_A_GPU = {
    "busy stream": (
        "stream",
        "A call and its gradient run on the current CUDA stream, after the work that is already on it.",
        "f(x) on a stream = f(x), where the stream writes x after other work",
    ),
    "graph": (
        "graph",
        "A CUDA graph of a call and its gradient, replayed with new inputs, gives the results of the new inputs.",
        "replay(capture(f, x), x′) = (f(x′), df(x′)), or an error at the capture",
    ),
}


def register(operation: Operation) -> None:
    """Register these laws for one operation."""
    rows: dict[str, Any] = {"cases": of_rows(operation), "dtypes": ("float32", "bfloat16"), "share": 0.1}
    law(operation, "behaviour", **rows, skip=partial(lacking, "far memory"))(partial(far_offsets, operation))
    _large_grids.register(operation)
    for kind, (name, sentence, equation) in _ON_A_GPU.items():
        said: dict[str, Any] = {"name": name, "sentence": sentence, "equation": equation, "gradient": operation.name}
        law(operation, "behaviour", **said, **rows, skip=partial(lacking, kind))(partial(_transformed, kind, operation))


def far_offsets(operation: Operation, checker: Checker, case: Any) -> None:
    """Arrays may span more than 2³¹ elements of memory: no offset is computed in 32 bits.

    f(x) = f(contiguous x), for every axis whose elements lie 2³¹ apart
    """
    call = operation.call_of(case, checker.dtype)
    own = results_of(checker, call)
    with checker.implementation.far_memory():
        for axis in range(max(x.values.ndim for x in call.arrays.values())):
            alike_in_another_way(operation, checker, case, laid_out(call, f"far {axis}"), own)


def _transformed(kind: str, operation: Operation, checker: Checker, case: Any) -> None:
    call = operation.call_of(case, checker.dtype)
    own = results_of(checker, call)
    try:
        results = transformed(kind, checker, call)
    except RuntimeError as error:
        if kind != "graph":
            raise
        # CUDA reports this for an operation that no graph can contain; nothing wrong has been computed.
        raise RefusedError(f"{operation.name} cannot be captured: {str(error)[:200]}") from error
    same_results(operation, checker, case, call, results, own)
