"""Laws of every operation about its arrays: where they lie, what happens to them, their dtypes, their very bits."""

from typing import Any

from hypothesis import strategies as st

from conformance.checker import Checker, LawError
from conformance.implementation import Results
from conformance.laws import law
from conformance.laws._answers import BROADCAST, check, has_gradient, laid_out
from conformance.operations import Operation


def register(operation: Operation) -> None:
    """Register these laws for one operation."""
    about, name = operation.about, operation.name

    @law(
        about,
        "Strided, transposed, reversed and broadcast arrays, cotangents among them, give what contiguous ones give; "
        "what comes in is left alone, and no result shares memory with it or with another.",
        f"{name}(x[::2]) = {name}(copy of x[::2])",
        name="memory",
        kind="behaviour",
        cases=lambda plan: st.one_of(operation.all_cases(plan), *map(st.just, operation.stepless)),
        strata=("small",),
        dtypes=("float64", "float32"),
        needs=(name,),
        share=0.75,
        skip=lambda implementation: implementation.lacks("layouts"),
    )
    def memory(checker: Checker, case: Any) -> None:
        call = operation.call_of(case, checker.dtype)
        for layout in (*checker.implementation.layouts, BROADCAST):
            laid = laid_out(call, layout)
            check(operation, checker, case, laid, layout if layout == BROADCAST else "")
            options = checker.options(name, laid.options)
            found = checker.served(checker.implementation.impurities, name, laid.arrays, options, laid.cotangents)
            if found:
                raise LawError("", f"{layout}: {'; '.join(found[:4])}", nature="memory")

    @law(
        about,
        "Outputs have the dtype of the values, states the accumulation dtype, each gradient the dtype of its primal.",
        "dtype(y) = dtype(x), dtype(state) = float32 or wider, dtype(dx) = dtype(x)",
        name="dtypes",
        kind="behaviour",
        cases=operation.all_cases,
        strata=("small",),
        needs=(name,),
        gradient=name,
        share=0.25,
    )
    def dtypes(checker: Checker, case: Any) -> None:
        call = operation.call_of(case, checker.dtype)
        outputs, gradients = checker.vjp(name, call.arrays, call.cotangents, call.options)
        gradients = {primal: gradients[primal] for primal in call.primals if primal in gradients}
        checker.expect_dtypes(outputs, gradients, call.arrays, operation.in_dtype)

    @law(
        about,
        "Two runs give the same bits, in value and in gradient.",
        f"{name}(x) = {name}(x), bit by bit",
        name="determinism",
        kind="behaviour",
        cases=operation.all_cases,
        strata=operation.strata,
        dtypes=("float32", "bfloat16"),
        needs=(name,),
    )
    def determinism(checker: Checker, case: Any) -> None:
        call = operation.call_of(case, checker.dtype)
        once, again = (checker.call(name, call.arrays, call.options) for _ in "12")
        _same_bits(once, again)
        if has_gradient(operation, checker):
            first, second = (checker.vjp(name, call.arrays, call.cotangents, call.options) for _ in "12")
            _same_bits(first[0], second[0])
            _same_bits(first[1], second[1], "gradient of ")

    @law(
        about,
        "No result depends on what memory held before: with NaN in all that is newly allocated, it is the same.",
        f"{name}(x) is the reference's where every uninitialised element is NaN",
        name="uninitialised",
        kind="behaviour",
        cases=operation.all_cases,
        strata=tuple(stratum for stratum in operation.strata if stratum != "long"),
        dtypes=("float32", "bfloat16"),
        needs=(name,),
        share=0.5,
        skip=lambda implementation: implementation.lacks("poisoned"),
    )
    def uninitialised(checker: Checker, case: Any) -> None:
        call = operation.call_of(case, checker.dtype)
        with checker.implementation.poisoned():
            check(operation, checker, case, call)

    if operation.extremes is None:
        return

    @law(
        about,
        "Finite in, finite out: no gate, however extreme, makes a NaN, in outputs or gradients.",
        "forget gates in [−∞, ∞], input gates in [−∞, ∞) ⇒ no NaN",
        name="finite",
        kind="behaviour",
        cases=operation.extremes,
        strata=operation.strata,
        needs=(name,),
        share=0.75,
    )
    def finite(checker: Checker, case: Any) -> None:
        call = operation.call_of(case, checker.dtype)
        checker.expect_no_nan(checker.call(name, call.arrays, call.options))
        if has_gradient(operation, checker):
            outputs, gradients = checker.vjp(name, call.arrays, call.cotangents, call.options)
            checker.expect_no_nan(outputs)
            checker.expect_no_nan(gradients, "gradient of ")


def _same_bits(first: Results, again: Results, of: str = "") -> None:
    for name, x in first.items():
        y = again[name]
        if x.shape != y.shape or x.values.tobytes() != y.values.tobytes():
            raise LawError(f"{of}{name}", "differs between two runs of one call")
