"""Single cases of a law, judged without drawing any."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from conformance.frameworks.implementation import Implementation, RefusedError
from conformance.judge.avoidance import Avoidance
from conformance.judge.outcome import Counterexample
from conformance.judge.search import Search
from conformance.laws import Law
from conformance.laws.checker import Checker
from conformance.laws.comparison import CallRecord
from conformance.tolerance.compared import BreakKind


def retried(
    implementation: Implementation,
    law: Law,
    dtype: str,
    case: Any,
    announce: Callable[[str | None], None] = lambda case: None,
    fatal: Mapping[str, BreakKind] | None = None,
) -> tuple[list[Counterexample], list[CallRecord]]:
    """The ways in which one case breaks a law, and the calls of the target that were made.

    Raises:
        RefusedError: the target refuses the case.
    """
    search = search_of(implementation, law, dtype, announce, fatal or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if search.judge(case) is None:
            raise RefusedError(search.refusal)
    return [found.counterexample for found in search.found.values()], search.checker.calls


def search_of(
    implementation: Implementation,
    law: Law,
    dtype: str,
    announce: Callable[[str | None], None],
    fatal: Mapping[str, BreakKind],
) -> Search:
    """The search that judges single cases of a law."""
    checker = Checker(implementation, dtype, law.forward)
    return Search(law, checker, Avoidance((), list, max_steps=0), announce, fatal=fatal)
