"""Decay matrices: `causal_forget_matrix` and `dtilde_matrix`."""

from dataclasses import replace

import numpy as np

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import SumCase
from conformance.dtypes import array
from conformance.laws import law
from conformance.laws._refusals import BadCall, check_refusal, recast, reshaped, with_arrays
from conformance.laws.scan import no_memory, pure
from conformance.trial import LawError, Trial

SIZES = ("small", "chunk")
_EQUATIONS = {
    "causal_forget_matrix": "F[t,j] = Σ_{j<s≤t} a_s for t ≥ j, else −∞",
    "dtilde_matrix": "D̃[t,j] = Σ_{j<s≤t} log σ(f_s) + i_j for t ≥ j, else −∞",
}
_GRADIENTS = {
    "causal_forget_matrix": "da_s = Σ_{t≥s} Σ_{j<s} dF[t,j]",
    "dtilde_matrix": "di_j = Σ_t dD̃[t,j] (masked rows too); df_s = σ(−f_s) Σ_{t≥s} Σ_{j<s} dD̃[t,j]",
}


def _arrays(operation: str, trial: Trial, case: SumCase) -> dict:
    return case.log_gates(trial.dtype) if operation == "causal_forget_matrix" else case.preactivations(trial.dtype)


def _value(operation: str, trial: Trial, case: SumCase) -> Expected:
    values, precision = oracle.values(_arrays(operation, trial, case)), trial.precision(case.steps)
    return (
        oracle.dtilde(values, precision) if operation == "dtilde_matrix" else oracle.sums(operation, values, precision)
    )


def _gradient(operation: str, trial: Trial, case: SumCase) -> Expected:
    values, precision = oracle.values(_arrays(operation, trial, case)), trial.precision(case.steps**2)
    cotangents = oracle.values(case.cotangent(trial.dtype, square=True))
    if operation == "dtilde_matrix":
        return oracle.dtilde_gradient(values, cotangents, precision)
    return oracle.sums_gradient(operation, values, cotangents, precision)


def _register(operation: str) -> None:
    @law(
        operation,
        "The value is the reference's; what no sum reaches is exactly −∞, and log gates of −∞ are legal.",
        _EQUATIONS[operation],
        name="value",
        cases=cases.gate_sums,
        strata=SIZES,
    )
    def value(trial: Trial, case: SumCase) -> None:
        outputs = trial.call(operation, _arrays(operation, trial, case))
        trial.agree(outputs, _value(operation, trial, case), case.steps)

    @law(
        operation,
        "The gradient is the rule of its own, of any cotangent; nothing is NaN where a gate is closed.",
        _GRADIENTS[operation],
        name="gradient",
        cases=cases.gate_sums,
        strata=SIZES,
        gradient=operation,
    )
    def gradient(trial: Trial, case: SumCase) -> None:
        arrays, cotangents = _arrays(operation, trial, case), case.cotangent(trial.dtype, square=True)
        _, gradients = trial.vjp(operation, arrays, cotangents)
        trial.agree(gradients, _gradient(operation, trial, case), case.steps, of="gradient of ")

    @law(
        operation,
        "Strided inputs give what contiguous ones give; inputs are left alone and no output shares their memory.",
        "Y(x[::2]) = Y(copy of x[::2])",
        name="memory",
        cases=cases.gate_sums,
        strata=("small",),
        dtypes=("float64", "float32"),
        share=0.5,
        skip=no_memory,
    )
    def memory(trial: Trial, case: SumCase) -> None:
        for layout in trial.implementation.layouts:
            arrays = _arrays(operation, trial, replace(case, layout=layout))
            trial.agree(trial.call(operation, arrays), _value(operation, trial, case), case.steps)
            pure(trial, operation, arrays, case.cotangent(trial.dtype, square=True))

    @law(
        operation,
        "Outputs and gradients have the dtype of the gates.",
        "dtype(Y) = dtype(x) = dtype(dx)",
        name="dtypes",
        cases=cases.gate_sums,
        strata=("small",),
        gradient=operation,
        share=0.25,
    )
    def dtypes(trial: Trial, case: SumCase) -> None:
        arrays, cotangents = _arrays(operation, trial, case), case.cotangent(trial.dtype, square=True)
        outputs, gradients = trial.vjp(operation, arrays, cotangents)
        trial.expect_dtypes(outputs, gradients, arrays, ("y",))

    law(
        operation,
        "A bad call raises the reference's error, in type and text.",
        "error(target) = error(reference)",
        name="bad_calls",
        rows=_BAD_CALLS[operation],
        dtypes=("float32",),
    )(check_refusal)


def _bad_forget() -> list[BadCall]:
    def base() -> dict:
        return {"forget_gates": array(-np.ones((2, 3)), "float32")}

    operation = "causal_forget_matrix"
    return [
        with_arrays(base, operation, "an integer array", forget_gates=recast("int32")),
        with_arrays(base, operation, "no axis", forget_gates=reshaped()),
        with_arrays(base, operation, "a number", forget_gates=1.0),
    ]


def _bad_dtilde() -> list[BadCall]:
    def base() -> dict:
        return {"igate": array(np.ones((2, 3, 1)), "float32"), "fgate": array(np.ones((2, 3, 1)), "float32")}

    operation = "dtilde_matrix"
    return [
        with_arrays(base, operation, "gates of different lengths", fgate=reshaped(2, 4, 1)),
        with_arrays(base, operation, "gates of different batches", fgate=reshaped(3, 3, 1)),
        with_arrays(base, operation, "an axis too few", igate=reshaped(3)),
        with_arrays(base, operation, "a last axis that is not 1", igate=reshaped(2, 3, 2), fgate=reshaped(2, 3, 2)),
        with_arrays(base, operation, "mixed dtypes", fgate=recast("float64")),
        with_arrays(base, operation, "an integer array", igate=recast("int32")),
    ]


_BAD_CALLS = {"causal_forget_matrix": _bad_forget, "dtilde_matrix": _bad_dtilde}

for _operation in _EQUATIONS:
    _register(_operation)


@law(
    "causal_forget_matrix",
    "The diagonal is exactly 0 and all above it exactly −∞.",
    "F[t,t] = 0, F[t,j] = −∞ for t < j",
    name="mask",
    cases=cases.gate_sums,
    strata=SIZES,
    dtypes=("float32",),
    share=0.25,
)
def mask(trial: Trial, case: SumCase) -> None:
    F = trial.call("causal_forget_matrix", case.log_gates(trial.dtype))["y"].values
    steps = np.arange(case.S)
    if (F[..., steps, steps] != 0).any():
        raise LawError("F", "the diagonal is not exactly 0")
    above = np.triu(np.ones((case.S, case.S), dtype=bool), 1)
    if not np.isneginf(F[..., above]).all():
        raise LawError("F", "an element above the diagonal is not −∞")
