"""Reverse cumulative sums: `rev_cumsum` and `rev_cumsum_off`."""

from dataclasses import replace

import numpy as np

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import SumCase
from conformance.dtypes import array
from conformance.laws import law
from conformance.laws._refusals import BadCall, check_refusal, recast, reshaped, with_arrays
from conformance.trial import LawError, Trial

OPERATIONS = {"rev_cumsum": "y_t = Σ_{s≥t} x_s", "rev_cumsum_off": "y_t = Σ_{s>t} x_s"}


def _value(operation: str, trial: Trial, case: SumCase) -> Expected:
    return oracle.sums(operation, oracle.values(case.scan(trial.dtype)), trial.precision(case.steps))


def _register(operation: str, equation: str) -> None:
    @law(operation, "The value is the reference's.", equation, name="value", cases=cases.sums)
    def value(trial: Trial, case: SumCase) -> None:
        trial.agree(trial.call(operation, case.scan(trial.dtype)), _value(operation, trial, case), case.steps)

    @law(
        operation,
        "The gradient is the running sum forwards, of any cotangent.",
        f"dx_s = Σ_{{t{'≤' if operation == 'rev_cumsum' else '<'}s}} dy_t",
        name="gradient",
        cases=cases.sums,
        gradient=operation,
    )
    def gradient(trial: Trial, case: SumCase) -> None:
        arrays, cotangents = case.scan(trial.dtype), case.cotangent(trial.dtype, square=False)
        _, gradients = trial.vjp(operation, arrays, cotangents)
        expected = oracle.sums_gradient(
            operation, oracle.values(arrays), oracle.values(cotangents), trial.precision(case.steps)
        )
        trial.agree(gradients, expected, case.steps, of="gradient of ")

    @law(
        operation,
        "The operation is linear.",
        "Y(x + x') = Y(x) + Y(x')",
        name="linearity",
        cases=cases.sums,
        strata=("small", "chunk"),
        dtypes=("float64", "float32"),
        share=0.5,
    )
    def linearity(trial: Trial, case: SumCase) -> None:
        x, other = (np.round(8 * np.clip(case.draw(salt), -50, 50)) / 8 for salt in (5, 12))
        y, y_other, y_both = (
            trial.call(operation, {"x": array(each, trial.dtype)})["y"] for each in (x, other, x + other)
        )
        slack = sum(
            oracle.sums(operation, {"x": each}, trial.precision(case.steps)).slack["y"]
            for each in (np.abs(x), np.abs(other), np.abs(x + other))
        )
        trial.close("y", y_both, y.values + y_other.values, np.asarray(slack), case.steps)

    @law(
        operation,
        "Strided inputs give what contiguous ones give; inputs are left alone and no output shares their memory.",
        "Y(x[::2]) = Y(copy of x[::2])",
        name="memory",
        cases=lambda plan: cases.sums(plan),
        strata=("small",),
        dtypes=("float64", "float32"),
        share=0.5,
        skip=no_memory,
    )
    def memory(trial: Trial, case: SumCase) -> None:
        for layout in trial.implementation.layouts:
            laid = replace(case, layout=layout)
            trial.agree(trial.call(operation, laid.scan(trial.dtype)), _value(operation, trial, case), case.steps)
            pure(trial, operation, laid.scan(trial.dtype), case.cotangent(trial.dtype, square=False))

    @law(
        operation,
        "Outputs and gradients have the dtype of the input.",
        "dtype(y) = dtype(x) = dtype(dx)",
        name="dtypes",
        cases=cases.sums,
        strata=("small",),
        gradient=operation,
        share=0.25,
    )
    def dtypes(trial: Trial, case: SumCase) -> None:
        arrays, cotangents = case.scan(trial.dtype), case.cotangent(trial.dtype, square=False)
        outputs, gradients = trial.vjp(operation, arrays, cotangents)
        trial.expect_dtypes(outputs, gradients, arrays, ("y",))

    def bad_calls() -> list[BadCall]:
        def base() -> dict:
            return {"x": array(np.ones((2, 3)), "float32")}

        return [
            with_arrays(base, operation, "an integer array", x=recast("int32")),
            with_arrays(base, operation, "no axis", x=reshaped()),
            with_arrays(base, operation, "a list", x=[1.0, 2.0]),
        ]

    law(
        operation,
        "A bad call raises the reference's error, in type and text.",
        "error(target) = error(reference)",
        name="bad_calls",
        rows=bad_calls,
        dtypes=("float32",),
    )(check_refusal)


def no_memory(implementation: object) -> str | None:
    if getattr(implementation, "framework", "") == "jax":
        return "JAX arrays cannot be written to and have no strides"
    return None


def pure(trial: Trial, operation: str, arrays: dict, cotangents: dict, options: dict | None = None) -> None:
    found = trial.implementation.impurities(operation, arrays, options or {}, cotangents)
    if found:
        raise LawError("", "; ".join(found[:4]))


for _operation, _equation in OPERATIONS.items():
    _register(_operation, _equation)


@law(
    "rev_cumsum",
    "The two reverse sums differ by the element itself.",
    "rev_cumsum(x) − rev_cumsum_off(x) = x",
    name="offset",
    cases=cases.sums,
    needs=("rev_cumsum", "rev_cumsum_off"),
    dtypes=("float64", "float32"),
    share=0.5,
)
def offset(trial: Trial, case: SumCase) -> None:
    arrays = case.scan(trial.dtype)
    y, off = (trial.call(operation, arrays)["y"] for operation in OPERATIONS)
    slack = 2 * _value("rev_cumsum", trial, case).slack["y"]
    trial.close("y", y, off.values + arrays["x"].values, slack, case.steps)
