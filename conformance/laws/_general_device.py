"""Laws of every operation about faults of kernels: 32-bit offsets, large grids, streams, captured graphs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import Array
from conformance.frameworks.implementation import RefusedError
from conformance.laws import law
from conformance.laws._answers import lacking, laid_out, of_rows, transformed
from conformance.laws._relations import alike_in_another_way, expect_zero, results_of, same_results
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
    # Scans and tables of decays have neither sequences nor heads.
    if operation.states:
        first: Any = {"rows": lambda: list(operation.rows[:1]), "skip": partial(lacking, "large grids")}
        law(operation, "behaviour", **first)(partial(large_grids, operation))
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


LIMIT = 65_535
"""The largest number of programs along the second and the third axis of a grid."""

AXES = {"B": "sequences", "N": "heads"}
"""The letters of axes whose elements do not depend on each other, so that repeated ones repeat the results."""

Axes = Mapping[str, int]
"""The repeated axis of each array; arrays without it, such as a weight for all sequences, are omitted."""


def large_grids(operation: Operation, checker: Checker, case: Any) -> None:
    """A call may have more than 65,535 sequences, and more than 65,535 heads.

    f([x, …, x])[j] = f(x) and df([x, …, x])[j] = df(x) for every copy j, the last included

    The call's sequences, or heads, are repeated beyond the limit; only the last copy has cotangents.
    """
    call = operation.call_of(case, checker.dtype)
    own = results_of(checker, call)
    for letter in AXES:
        axes = operation.axes(letter)
        if not axes:
            continue
        # Of several numbers of heads, the largest counts: heads are shared by blocks, and each block is repeated whole.
        copies = LIMIT // max(x.values.shape[axes[name]] for name, x in call.arrays.items() if name in axes) + 2

        def repeated(name: str, x: Array, times: int, axes: Axes = axes, copies: int = copies) -> Array:
            """Copies of the array times a number, and the array itself as the last one."""
            if name not in axes:
                return x
            return replace(x, values=np.concatenate([times * x.values] * (copies - 1) + [x.values], axes[name]))

        large = replace(
            call,
            arrays={name: repeated(name, x, 1) for name, x in call.arrays.items()},
            cotangents={name: repeated(name, x, 0) for name, x in call.cotangents.items()},
        )
        outputs, gradients = results_of(checker, large)
        first, last = (_copies(outputs, own[0], axes, at) for at in (0, -1))
        same_results(operation, checker, case, call, (first, None), own)
        of_last = None if gradients is None or own[1] is None else _copies(gradients, own[1], axes, -1)
        same_results(operation, checker, case, call, (last, of_last), own)
        for name, x in (gradients or {}).items():
            if name in axes and own[1] is not None:
                size = own[1][name].values.shape[axes[name]]
                others = np.moveaxis(x.values, axes[name], 0)[:-size]
                expect_zero(name, others, f"for {AXES[letter]} whose outputs have no cotangent")


def _copies(results: Mapping[str, Array], own: Mapping[str, Array], axes: Axes, at: int) -> dict[str, Array]:
    """The first copy (0) or the last copy (−1) of what was repeated."""

    def copy(x: Array, axis: int, size: int) -> Array:
        start = 0 if at == 0 else x.shape[axis] - size
        return replace(x, values=x.values[(slice(None),) * axis + (slice(start, start + size),)])

    return {
        name: copy(x, axes[name], own[name].shape[axes[name]]) if name in axes and name in own else x
        for name, x in results.items()
    }
