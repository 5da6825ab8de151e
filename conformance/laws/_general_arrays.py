"""Laws of every operation about its arrays: where they lie, what happens to them, their dtypes, their very bits."""

from typing import Any

from hypothesis import strategies as st

from conformance.checker import Checker, LawError
from conformance.implementation import Results
from conformance.laws import law
from conformance.laws._subjects import BROADCAST, Subject, laid_out


def register(subject: Subject) -> None:
    """Register these laws for one operation."""
    op, operation = subject.op, subject.operation

    @law(
        op,
        "Strided, transposed, reversed and broadcast arrays, cotangents among them, give what contiguous ones give; "
        "what comes in is left alone, and no result shares memory with it or with another.",
        f"{operation}(x[::2]) = {operation}(copy of x[::2])",
        name="memory",
        kind="behaviour",
        cases=lambda plan: st.one_of(subject.cases(plan), *map(st.just, subject.stepless)),
        strata=("small",),
        dtypes=("float64", "float32"),
        needs=(operation,),
        share=0.75,
        skip=lambda implementation: implementation.lacks("layouts"),
    )
    def memory(checker: Checker, case: Any) -> None:
        call = subject.call(case, checker.dtype)
        for layout in (*checker.implementation.layouts, BROADCAST):
            laid = laid_out(call, layout)
            subject.check(checker, case, laid, layout if layout == BROADCAST else "")
            options = checker.options(operation, laid.options)
            found = checker.served(checker.implementation.impurities, operation, laid.arrays, options, laid.cotangents)
            if found:
                raise LawError("", f"{layout}: {'; '.join(found[:4])}", nature="memory")

    @law(
        op,
        "Outputs have the dtype of the values, states the accumulation dtype, each gradient the dtype of its primal.",
        "dtype(y) = dtype(x), dtype(state) = float32 or wider, dtype(dx) = dtype(x)",
        name="dtypes",
        kind="behaviour",
        cases=subject.cases,
        strata=("small",),
        needs=(operation,),
        gradient=operation,
        share=0.25,
    )
    def dtypes(checker: Checker, case: Any) -> None:
        call = subject.call(case, checker.dtype)
        outputs, gradients = checker.vjp(operation, call.arrays, call.cotangents, call.options)
        gradients = {name: gradients[name] for name in call.primals if name in gradients}
        checker.expect_dtypes(outputs, gradients, call.arrays, subject.in_dtype)

    @law(
        op,
        "Two runs give the same bits, in value and in gradient.",
        f"{operation}(x) = {operation}(x), bit by bit",
        name="determinism",
        kind="behaviour",
        cases=subject.cases,
        strata=subject.strata,
        dtypes=("float32", "bfloat16"),
        needs=(operation,),
    )
    def determinism(checker: Checker, case: Any) -> None:
        call = subject.call(case, checker.dtype)
        once, again = (checker.call(operation, call.arrays, call.options) for _ in "12")
        _same_bits(once, again)
        if subject.differentiable(checker):
            first, second = (checker.vjp(operation, call.arrays, call.cotangents, call.options) for _ in "12")
            _same_bits(first[0], second[0])
            _same_bits(first[1], second[1], "gradient of ")

    @law(
        op,
        "No result depends on what memory held before: with NaN in all that is newly allocated, it is the same.",
        f"{operation}(x) is the reference's where every uninitialised element is NaN",
        name="uninitialised",
        kind="behaviour",
        cases=subject.cases,
        strata=tuple(stratum for stratum in subject.strata if stratum != "long"),
        dtypes=("float32", "bfloat16"),
        needs=(operation,),
        share=0.5,
        skip=lambda implementation: implementation.lacks("poisoned"),
    )
    def uninitialised(checker: Checker, case: Any) -> None:
        call = subject.call(case, checker.dtype)
        with checker.implementation.poisoned():
            subject.check(checker, case, call)

    if subject.extremes is None:
        return

    @law(
        op,
        "Finite in, finite out: no gate, however extreme, makes a NaN, in outputs or gradients.",
        "forget gates in [−∞, ∞], input gates in [−∞, ∞) ⇒ no NaN",
        name="finite",
        kind="behaviour",
        cases=subject.extremes,
        strata=subject.strata,
        needs=(operation,),
        share=0.75,
    )
    def finite(checker: Checker, case: Any) -> None:
        call = subject.call(case, checker.dtype)
        checker.expect_no_nan(checker.call(operation, call.arrays, call.options))
        if subject.differentiable(checker):
            outputs, gradients = checker.vjp(operation, call.arrays, call.cotangents, call.options)
            checker.expect_no_nan(outputs)
            checker.expect_no_nan(gradients, "gradient of ")


def _same_bits(first: Results, again: Results, of: str = "") -> None:
    for name, x in first.items():
        y = again[name]
        if x.shape != y.shape or x.values.tobytes() != y.values.tobytes():
            raise LawError(f"{of}{name}", "differs between two runs of one call")
