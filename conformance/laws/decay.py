"""Decay matrices: `causal_forget_matrix` and `dtilde_matrix`."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.base.dtypes import array
from conformance.cases import SumCase
from conformance.laws import EVERY, SHORT, SINGLE, WIDE, law
from conformance.laws._answers import check_gradient_alone, check_value, expected_value
from conformance.laws.checker import Checker, LawError
from conformance.operations import OPERATIONS, Operation
from conformance.operations.decay import CAUSAL_FORGET_MATRIX, DTILDE_MATRIX

_EQUATIONS = {
    "causal_forget_matrix": "F[t,j] = Σ_{j<s≤t} a_s for t ≥ j, else −∞",
    "dtilde_matrix": "D̃[t,j] = Σ_{j<s≤t} log σ(f_s) + i_j for t ≥ j, else −∞",
}
_GRADIENTS = {
    "causal_forget_matrix": "da_s = Σ_{t≥s} Σ_{j<s} dF[t,j]",
    "dtilde_matrix": "di_j = Σ_t dD̃[t,j] (masked rows too); df_s = σ(−f_s) Σ_{t≥s} Σ_{j<s} dD̃[t,j]",
}


def _register(operation: str) -> None:
    record = OPERATIONS[operation]
    on_sizes: dict[str, Any] = {"strata": SHORT, "usual": EVERY, "quick": True}

    @law(operation, "definition", equation=_EQUATIONS[operation], cases=cases.gate_sums, **on_sizes)
    def value(checker: Checker, case: SumCase) -> None:
        """The value is the reference's; elements above the diagonal are exactly −∞, and log gates of −∞ are legal."""
        check_value(record, checker, case)

    symbols, drawn = _GRADIENTS[operation], cases.gate_sums

    @law(operation, "definition", equation=symbols, cases=drawn, gradient=operation, **on_sizes)
    def gradient(checker: Checker, case: SumCase) -> None:
        """The gradient follows the operation's own rule for any cotangent, and is not NaN where a gate is closed."""
        check_gradient_alone(record, checker, case)


for _operation in _EQUATIONS:
    _register(_operation)


@law("causal_forget_matrix", "definition", cases=cases.gate_sums, strata=SHORT, dtypes=SINGLE, share=0.25)
def mask(checker: Checker, case: SumCase) -> None:
    """The diagonal is exactly 0, and everything above it is exactly −∞.

    F[t,t] = 0, F[t,j] = −∞ for t < j
    """
    F = checker.call(CAUSAL_FORGET_MATRIX.call_of(case, checker.dtype))["y"].values
    steps = np.arange(case.S)
    if (F[..., steps, steps] != 0).any():
        raise LawError("F", "the diagonal is not exactly 0")
    above = np.triu(np.ones((case.S, case.S), dtype=bool), 1)
    if not np.isneginf(F[..., above]).all():
        raise LawError("F", "an element above the diagonal is not −∞")


@law("causal_forget_matrix", "relation", cases=cases.gate_sums, share=0.25)
def composition(checker: Checker, case: SumCase) -> None:
    """Log decays add up: the log decay over two consecutive intervals is the sum of theirs.

    F[t,j] = F[t,s] + F[s,j] for j ≤ s ≤ t
    """
    F = checker.call(CAUSAL_FORGET_MATRIX.call_of(case, checker.dtype))["y"]
    slack = expected_value(CAUSAL_FORGET_MATRIX, checker, case).slack["y"]
    for s in {0, case.S // 3, case.S // 2, case.S - 1} if case.S else ():
        whole, allowed = F.values[..., s:, : s + 1], slack[..., s:, : s + 1]
        parts = F.values[..., s:, s, None] + F.values[..., None, s, : s + 1]
        checker.close("F", replace(F, values=whole), parts, 3 * allowed, case.steps)


@law(
    "causal_forget_matrix",
    "relation",
    compiled_dtypes=None,
    cases=lambda limits: cases.sums(limits, ("ordinary", "wide")).filter(lambda case: case.S > 0),
    dtypes=SINGLE,
    share=0.25,
)
def shut_gate(checker: Checker, case: SumCase) -> None:
    """A closed gate separates the steps before it from the steps after it, and changes nothing else.

    a_s = −∞ ⇒ F[t,j] = −∞ for j < s ≤ t; elsewhere F is as with a_s = 0
    """
    call, s = CAUSAL_FORGET_MATRIX.call_of(case, checker.dtype), case.S // 2
    a = call.arrays["forget_gates"]
    shut, open_ = a.values.copy(), a.values.copy()
    shut[..., s], open_[..., s] = -np.inf, 0.0
    F, of_open = (
        checker.call(call.with_arrays(forget_gates=replace(a, values=values)))["y"] for values in (shut, open_)
    )
    cut = np.zeros((case.S, case.S), dtype=bool)
    cut[s:, :s] = True
    if not np.isneginf(F.values[..., cut]).all():
        raise LawError("F", "an element across a closed gate is not −∞")
    slack = 2 * oracle.sums("causal_forget_matrix", {"forget_gates": open_}, checker.precision(case.steps)).slack["y"]
    beside = replace(F, values=F.values[..., ~cut])
    checker.close("F", beside, of_open.values[..., ~cut], slack[..., ~cut], case.steps)


@law("dtilde_matrix", "relation", cases=cases.gate_sums, needs=("dtilde_matrix", "causal_forget_matrix"), share=0.25)
def parts(checker: Checker, case: SumCase) -> None:
    """D̃ is the decay matrix of the log gates with every column's input gate added.

    D̃ = causal_forget_matrix(log σ(f)) + i_j
    """
    call = DTILDE_MATRIX.call_of(case, checker.dtype)
    i, f = (call.arrays[name].values[..., 0] for name in ("igate", "fgate"))
    D = checker.call(call)["y"]
    log_gates = array(-np.logaddexp(0.0, -f), "float64" if checker.upcasts else checker.dtype)
    F = checker.call(Call(operation="causal_forget_matrix", arrays={"forget_gates": log_gates}))["y"]
    checker.close(
        "D̃", D, F.values + i[..., None, :], 3 * expected_value(DTILDE_MATRIX, checker, case).slack["y"], case.steps
    )


_MASKED: dict[str, Any] = {"strata": SHORT, "dtypes": WIDE, "compiled_dtypes": SINGLE, "share": 0.25}


def _masked(operation: Operation, case: SumCase, dtype: str) -> Call:
    """The case's call with cotangents of masked elements alone."""
    call, cotangent = operation.call_of(case, dtype), case.cotangent(dtype, square=True)["y"]
    return replace(call, cotangents={"y": replace(cotangent, values=np.triu(cotangent.values, 1))})


@law("causal_forget_matrix", "definition", cases=cases.gate_sums, gradient="causal_forget_matrix", **_MASKED)
def masked_rows(checker: Checker, case: SumCase) -> None:
    """Elements above the diagonal are masked: their cotangents reach no gate.

    dF[t,j] = 0 for t ≥ j ⇒ da = 0
    """
    _, gradients = checker.vjp(_masked(CAUSAL_FORGET_MATRIX, case, checker.dtype))
    if (gradients["forget_gates"].values != 0).any():
        raise LawError("gradient of forget_gates", "includes the cotangent of a masked element")


@law("dtilde_matrix", "contract", name="masked_rows", cases=cases.gate_sums, gradient="dtilde_matrix", **_MASKED)
def masked_rows_of_dtilde(checker: Checker, case: SumCase) -> None:
    """The cotangent of a masked element reaches the input gate of its column, and no forget gate.

    dD̃[t,j] = 0 for t ≥ j ⇒ di_j = Σ_{t<j} dD̃[t,j], df = 0
    """
    call, precision = _masked(DTILDE_MATRIX, case, checker.dtype), checker.precision(case.steps**2)
    _, gradients = checker.vjp(call)
    expected = oracle.dtilde_gradient(oracle.values(call.arrays), oracle.values(call.cotangents), precision)
    checker.agree(gradients, expected, case.steps, of="gradient of ", only=("igate",))
    if (gradients["fgate"].values != 0).any():
        raise LawError("gradient of fgate", "includes the cotangent of a masked element")
