"""The laws of a stated recurrence that are about it alone: its value and its gradient, dense and packed."""

from functools import partial
from typing import Any

from conformance.base.dtypes import HALF
from conformance.cases import some_without_states
from conformance.laws import EVERY, FEW, SHORT, SINGLE, UP_TO_BFLOAT16, law
from conformance.laws._answers import check_gradient, check_value, expect_gradient, expect_value
from conformance.laws._relations import results_of
from conformance.laws.checker import Checker
from conformance.operations import Operation


def register(operation: Operation) -> None:
    """Register these laws for one recurrence."""
    assert operation.stated is not None
    op, stated, drawn = operation.name, operation.stated.recurrence, dict(operation.cases)
    if operation.state_switch:
        drawn = {name: some_without_states(strategy) for name, strategy in drawn.items()}
    dense = drawn["dense"]

    @law(operation, "definition", equation=stated.equation, cases=dense, usual=FEW, forward=True, quick=True)
    def value(checker: Checker, case: Any) -> None:
        """Outputs and final states are those of the stated step, applied to one step after the other.

        states, outputs = step(states, x_t) for t = 1 … S
        """
        check_value(operation, checker, case)

    @law(operation, "definition", cases=drawn.get("gradient", dense), usual=EVERY, gradient=op, quick=True)
    def gradient(checker: Checker, case: Any) -> None:
        """The gradient is exact for every argument, initial state and final-state cotangent included.

        dx = Σ_out ⟨d_out, ∂out/∂x⟩ for every argument x
        """
        check_gradient(operation, checker, case)

    if stated.wide_gates:
        _register_gate_dtypes(operation)
    if not operation.packs:
        return

    @law(
        operation,
        "definition",
        cases=drawn["packed"],
        usual=FEW,
        dtypes=UP_TO_BFLOAT16,
        compiled_dtypes=SINGLE,
        forward=True,
        quick=True,
    )
    def packed(checker: Checker, case: Any) -> None:
        """A packed call gives the same results as a loop over its sequences; an empty one returns its initial states.

        {op}(x, cu_seqlens)[b] = {op}(x[cu_b:cu_{b+1}])
        """
        check_value(operation, checker, case)


def _register_gate_dtypes(operation: Operation) -> None:
    gates = tuple(argument.name for argument in operation.arguments if argument.role == "gate")

    @law(
        operation,
        "contract",
        cases=partial(operation.cases["dense"], wide_gates=True),
        strata=SHORT,
        dtypes=HALF,
        compiled_dtypes=HALF[:1],
        share=0.25,
    )
    def gate_dtypes(checker: Checker, case: Any) -> None:
        """Gates and log decays may be float32 where the values have 16 bits, and then their gradients are float32.

        dtype(g) = float32 with dtype(v) = bfloat16 or float16
        """
        call = operation.call_of(case, checker.dtype)
        outputs, gradients = results_of(checker, call)
        expect_value(operation, checker, case, call, outputs)
        if gradients is not None:
            expect_gradient(operation, checker, case, call, gradients)
            own = {name: gradients[name] for name in gates if name in call.arrays}
            checker.expect_dtypes({}, own, call.arrays, ())
