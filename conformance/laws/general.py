"""The laws that operations share; those about arrays (layout, changes to inputs, dtypes, bits) are written here."""

from functools import cache, partial
from typing import Any

from hypothesis import strategies as st

from conformance.frameworks.implementation import Results
from conformance.laws import (
    WIDE,
    _calling_laws,
    _general_device,
    _general_nan,
    _general_transforms,
    _packing_laws,
    _recurrence_laws,
    _stated_laws,
    law,
)
from conformance.laws._answers import BROADCAST, check_results, has_gradient, lacking, laid_out
from conformance.laws._relations import alike_in_another_way, results_of
from conformance.laws.checker import Checker, LawError
from conformance.operations import OPERATIONS, Operation

SIZES = "BSNKVH"
"""The letters of sizes that a case has as fields."""


def _register(operation: Operation) -> None:
    """Register the laws about arrays for one operation."""
    empty = [case for size in SIZES for case in operation.with_size_0(size)]

    @law(
        operation,
        "behaviour",
        cases=lambda limits: st.one_of(operation.all_cases(limits), *map(st.just, operation.stepless)),
        dtypes=WIDE,
        share=0.75,
        skip=partial(lacking, "layouts"),
    )
    def memory(checker: Checker, case: Any) -> None:
        """Strided, transposed, reversed and broadcast arrays and cotangents give the same results as contiguous ones,
        and no call writes to its arguments.

        {op}(x[::2]) = {op}(copy of x[::2])
        """
        call = laid_out(operation.call_of(case, checker.dtype), "contiguous")
        own = results_of(checker, call)
        for layout in (*checker.implementation.layouts, BROADCAST):
            laid, form = laid_out(call, layout), layout if layout == BROADCAST else ""
            if layout == BROADCAST:
                own = results_of(checker, laid_out(laid, "contiguous"))
            alike_in_another_way(operation, checker, case, laid, own, form)
            written = checker.served(checker.implementation.written_to, checker.on_backend(laid))
            if written:
                raise LawError("", f"{layout}: {', '.join(written)} was written to", nature="memory")

    @law(operation, "behaviour", cases=operation.all_cases, share=0.25)
    def dtypes(checker: Checker, case: Any) -> None:
        """Outputs have the dtype of the values, states the accumulation dtype, each gradient the dtype of its argument.

        dtype(y) = dtype(x), dtype(state) = float32 or wider, dtype(dx) = dtype(x)
        """
        call = operation.call_of(case, checker.dtype)
        outputs, of = results_of(checker, call)
        gradients = {primal: of[primal] for primal in call.primals if of is not None and primal in of}
        checker.expect_dtypes(outputs, gradients, call.arrays, operation.in_dtype)

    @law(
        operation,
        "behaviour",
        cases=operation.all_cases,
        strata=operation.strata,
        usual=1 if operation.usual else 0,
        dtypes=("float32", "bfloat16"),
    )
    def determinism(checker: Checker, case: Any) -> None:
        """Two runs give the same bits, in value and in gradient.

        {op}(x) = {op}(x), bit by bit
        """
        call = operation.call_of(case, checker.dtype)
        once, again = (checker.call(call) for _ in "12")
        _same_bits(once, again)
        if has_gradient(operation, checker):
            first, second = (checker.vjp(call) for _ in "12")
            _same_bits(first[0], second[0])
            _same_bits(first[1], second[1], "gradient of ")

    @law(
        operation,
        "behaviour",
        cases=operation.all_cases,
        strata=tuple(stratum for stratum in operation.strata if stratum != "long"),
        dtypes=("float32", "bfloat16"),
        share=0.5,
        skip=partial(lacking, "poisoned"),
    )
    def uninitialised(checker: Checker, case: Any) -> None:
        """No result depends on uninitialised memory: it is the same if all newly allocated memory holds NaN.

        {op}(x) is the reference's where every uninitialised element is NaN
        """
        call = operation.call_of(case, checker.dtype)
        own = results_of(checker, call)
        with checker.implementation.poisoned():
            alike_in_another_way(operation, checker, case, call, own)

    @law(operation, "contract", rows=lambda: empty)
    def sizes_of_0(checker: Checker, case: Any) -> None:
        """A size of 0 is one like any other: outputs and gradients have the shapes of the definition, and what is left
        of them has its values.

        {op}(x) is the reference's where an axis of x has no element
        """
        check_results(operation, checker, case)

    if operation.extremes is None:
        return

    @law(operation, "behaviour", cases=operation.extremes, strata=operation.strata, share=0.75)
    def finite(checker: Checker, case: Any) -> None:
        """Finite in, finite out: no gate, however extreme, makes an output or a gradient NaN.

        forget gates in [−∞, ∞], input gates in [−∞, ∞) ⇒ no NaN
        """
        call = operation.call_of(case, checker.dtype)
        checker.expect_no_nan(checker.call(call))
        if has_gradient(operation, checker):
            outputs, gradients = checker.vjp(call)
            checker.expect_no_nan(outputs)
            checker.expect_no_nan(gradients, "gradient of ")


def _same_bits(first: Results, again: Results, of: str = "") -> None:
    for name, x in first.items():
        y = again[name]
        if x.shape != y.shape or x.values.tobytes() != y.values.tobytes():
            raise LawError(f"{of}{name}", "differs between two runs of one call")


@cache
def register(op: str) -> None:
    """Register the laws of one operation that its record alone says."""
    operation = OPERATIONS[op]
    if operation.stated is not None:
        _stated_laws.register(operation)
    if operation.recurs:
        _recurrence_laws.register(operation)
    if operation.one_step is not None:
        _recurrence_laws.register_steps(operation)
    if operation.takes("gradient_clipping"):
        _recurrence_laws.register_clipping(operation)
    if operation.packs:
        _packing_laws.register(operation)
    _register(operation)
    _calling_laws.register(operation)
    _general_transforms.register(operation)
    _general_device.register(operation)
    _general_nan.register(operation)
