"""Every law about values and gradients catches an error of ten times its budget, in every array that it is about."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reference
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import Limits
from conformance.frameworks.numpy import NumPyImplementation
from conformance.judge.draws import sampled
from conformance.laws import Law, all_laws
from conformance.laws.checker import Checker
from conformance.tolerance.budget import allowed

VALUES, GRADIENTS = ("value", "sequence", "packed", "by_hand"), ("gradient", "packed_gradient", "by_hand")
FUNCTIONS = {name: getattr(reference, name) for name in reference.__all__}
NUMERIC = (
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "mlstm",
    "mlstm_step",
    "fwbw",
    "gru",
)
LAWS = [law for law in all_laws() if law.op in NUMERIC and law.name in {*VALUES, *GRADIENTS}]
Change = Callable[[str, Array], Array]


class Changed(NumPyImplementation):
    """The reference with its results changed on their way out."""

    def __init__(self) -> None:
        super().__init__("reference", FUNCTIONS)
        self.change: Change = lambda name, result: result
        # Found out by a call, which is not to be taken for one that a law makes.
        assert self.upcasts

    def _changed(self, results: Mapping[str, Array], of: str = "") -> dict[str, Array]:
        return {name: self.change(f"{of}{name}", result) for name, result in results.items()}

    def call(self, call: Call) -> dict[str, Array]:
        return self._changed(super().call(call))

    def vjp(self, call: Call) -> tuple[dict, dict]:
        outputs, gradients = super().vjp(call)
        return self._changed(outputs), self._changed(gradients, "gradient of ")

    def run(self, key: Any, function: Any, arrays: Any) -> dict[str, Array]:
        return self._changed(super().run(key, function, arrays))


class Recording(Checker):
    """A checker that keeps what each array was held to."""

    def __init__(self, implementation: Any, dtype: str, forward: bool):
        super().__init__(implementation, dtype, forward)
        self.held: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def close(
        self, where: str, got: Any, expected: Any, slack: Any, steps: int, times: float = 1.0, **more: Any
    ) -> None:
        budget = allowed(expected, slack, self.precision(steps), "float64", times)
        self.held[where] = np.asarray(expected), np.broadcast_to(budget, np.shape(expected))
        super().close(where, got, expected, slack, steps, times, **more)


def whole(case: Any) -> bool:
    """A case in which everything is there: a state, every cotangent, several steps."""
    inner = getattr(case, "inner", case)
    if hasattr(inner, "lead"):
        return 0 not in inner.lead and inner.S > 2 and inner.values == "ordinary"
    states = inner.state in (True, "random") and inner.cotangents == "dense" and inner.gates == "ordinary"
    return states and inner.scale == 1 and inner.B > 0 and getattr(case, "return_state", True)


def elementary(law: Law, dtype: str) -> Any:
    """One such case of the law's own strategy; of a step, one step."""
    assert law.cases is not None
    limits = Limits("small", True, dtype, 7, pin="well-conditioned")
    case = sampled(law.cases(limits).filter(whole), 7, 1)[0]
    return replace(case, S=1) if law.op == "mlstm_step" else case


def injected(expected: np.ndarray, budget: np.ndarray, rng: np.random.Generator) -> tuple[int, float]:
    """A well-conditioned element, and ten times what it may be off by."""
    finite = np.isfinite(expected)
    fit = finite & (budget < 1e-9 * np.abs(expected))
    at = int(rng.choice(np.flatnonzero(fit if fit.any() else finite)))
    return at, 10 * float(budget.flat[at])


@pytest.mark.parametrize(
    ("law", "dtype"), [pytest.param(law, dtype, id=f"{law.id}-{dtype}") for law in LAWS for dtype in law.dtypes]
)
def test_an_error_of_ten_budgets_breaks_the_law_wherever_it_is(law: Law, dtype: str) -> None:
    implementation, case = Changed(), elementary(law, dtype)
    checker = Recording(implementation, dtype, law.forward)
    returned: set[str] = set()

    def note(name: str, result: Array) -> Array:
        returned.add(name)
        return result

    implementation.change = note
    law.check(checker, case)
    of_law = {name for name in returned if (law.name in GRADIENTS if "gradient" in name else law.name in VALUES)}
    assert of_law
    assert of_law <= set(checker.held), f"never compared: {sorted(of_law - set(checker.held))}"
    rng = np.random.default_rng(0)
    for target in sorted(of_law):
        at, error = injected(*checker.held[target], rng)

        def off(name: str, result: Array, target: str = target, at: int = at, error: float = error) -> Array:
            if name != target:
                return result
            values = result.values.copy()
            values.flat[at] += error
            return replace(result, values=values)

        implementation.change = off
        broken = Checker(implementation, dtype, law.forward).run(law.check, case)
        assert broken, f"{law.id} passes {target}[{at}] off by {error:.3g}, ten times its budget"
