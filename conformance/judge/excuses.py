"""Known breaks of laws: an entry excuses the breaks that its cause explains, found by experiment on the same case."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.features.promises import Promises, parsed
from conformance.formulas import formula_named
from conformance.formulas.judged import Judge
from conformance.formulas.recognition import matches
from conformance.frameworks.implementation import Implementation
from conformance.judge.expectations import INEXACT, Known
from conformance.laws import Law
from conformance.operations import BY_LAWS, Operation
from conformance.tolerance.compared import ArrayOutcome, BreakKind

Breaks = Callable[[Any], Sequence[BreakKind] | None]
"""The ways in which a case breaks the law; None if the target refuses the case."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A break of a law.

    Attributes:
        law, dtype, case: the law, the dtype and the case.
        kind: where and how the law breaks.
        outcome: the array, if one was compared.
    """

    law: Law
    dtype: str
    case: Any
    kind: BreakKind
    outcome: ArrayOutcome | None = None


@dataclass
class Excuses:
    """Judges breaks by the entries of a file of known failures.

    Args:
        implementation: the target.
        entries: the entries for this target.
    """

    implementation: Implementation
    entries: tuple[Known, ...]
    _judges: dict[tuple[str, str], Judge] = field(default_factory=dict)

    def of(self, law: Law, dtype: str) -> tuple[Known, ...]:
        """The entries that may excuse breaks of a law in a dtype."""
        return tuple(
            entry
            for entry in self.entries
            if entry.target in (None, self.implementation.name)
            and law.op in entry.operations
            and entry.law in ("", law.name)
            and (not entry.dtypes or dtype in entry.dtypes)
        )

    def explains(self, entry: Known, broken: Broken, breaks: Breaks) -> bool:
        """Whether the cause of an entry is also the cause of a break.

        Args:
            breaks: tries another case of the law.
        """
        kind, outcome = broken.kind, broken.outcome
        if kind.nature not in (entry.breaks or INEXACT) or (entry.where and kind.where not in entry.where):
            return False
        too_large = kind.nature == "number" and (outcome is None or outcome.error > (entry.error_up_to or 0.0))
        if too_large and (entry.error_up_to is not None or not entry.formula):
            return False
        operation = BY_LAWS.get(broken.law.op)
        if entry.formula and not (operation is not None and self._equals(operation, entry.formula, broken)):
            return False
        return not entry.promise or (operation is not None and _ends_with(entry.promise, operation, broken, breaks))

    def _equals(self, operation: Operation, name: str, broken: Broken) -> bool:
        """Whether the target's answer for the case is that of a formula."""
        if not operation.describes(broken.case):
            return False
        formula = formula_named(operation, name, getattr(broken.case, "chunk_size", None))
        if formula is None:
            return False
        key = operation.about, broken.dtype
        if key not in self._judges:
            self._judges[key] = Judge(self.implementation, operation, broken.dtype)
        return matches(formula, self._judges[key](broken.case), closely=False) is True


def _ends_with(promise: str, operation: Operation, broken: Broken, breaks: Breaks) -> bool:
    """Whether the case is outside a promise, and the nearest case that keeps it does not break the law in this way."""
    case, promises = broken.case, Promises((parsed(promise),))
    if not operation.describes(case) or promises.hold(operation, case, broken.dtype):
        return False
    kept = promises.kept(operation, case, broken.dtype)
    if kept is None:
        # Without such a case nothing shows that the promise is what matters; `S < 0` would excuse everything.
        return False
    left = breaks(kept)
    return left is None or broken.kind not in left
