"""Selection of the cases on which a target is tried: inside its promises, and without gatespec's own decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.features import described, features_of
from conformance.features.feature import Feature, avoiding
from conformance.features.promises import Promises, parsed
from conformance.operations import BY_LAWS, Operation


@dataclass(frozen=True)
class Admission:
    """Changes cases until they may be tried on a target.

    Attributes:
        texts: the target's promises.
        contract: whether it must also follow gatespec's own decisions, where other implementations may differ.
    """

    texts: tuple[str, ...] = ()
    contract: bool = True

    @cached_property
    def promises(self) -> Promises:
        return Promises(tuple(parsed(text) for text in self.texts))

    def features(self, operation: Operation) -> tuple[Feature, ...]:
        """The features that cases may have outside the laws about gatespec's own decisions."""
        return tuple(feature for feature in features_of(operation) if self.contract or not feature.contract)

    def admitted(self, op: str, dtype: str, case: Any, *, decided: bool = False) -> Any | None:
        """The case, changed as little as necessary; None if no such case keeps the promises.

        Args:
            op: the operation under which the law is listed.
            decided: whether the law's answer depends on gatespec's own decisions, for features that are marked so.
        """
        operation = BY_LAWS.get(op)
        if operation is None or not operation.describes(case):
            return case
        if decided:
            every, kept = features_of(operation), self.features(operation)
            case = avoiding(case, [each.name for each in every if each not in kept], every)
        return self.promises.kept(operation, case, dtype) if self.texts else case

    def strategy(self, op: str, dtype: str, cases: SearchStrategy, *, decided: bool = False) -> SearchStrategy:
        """A strategy that draws only admitted cases of another strategy."""
        if op not in BY_LAWS or (self.contract and not self.texts):
            return cases
        changed = cases.map(lambda case: self.admitted(op, dtype, case, decided=decided))
        return changed.filter(lambda case: case is not None)


def excluded(features: Sequence[Feature], admission: Admission, operation: Operation, dtype: str) -> list[str]:
    """The names of the features that no plain case can have within the promises."""
    if not admission.texts:
        return []
    plain = described(operation).plain(0)
    names = []
    for feature in features:
        case = plain if feature.present(plain) else feature.added(plain)
        kept = admission.promises.kept(operation, case, dtype)
        if kept is None or not feature.present(kept):
            names.append(feature.name)
    return names
