"""Selection of the cases on which a target is tried: inside its promises, and without gatespec's own decisions."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.features import described, features_of
from conformance.features.feature import STATES, Feature, avoiding
from conformance.features.promises import Promises, parsed
from conformance.operations import BY_LAWS, Operation

FRUITLESS = 8
"""Number of cases in succession that cannot be changed to keep the promises, after which no more are tried."""

LOST = 64
"""The same for cases of one law that keep the promises only without the law's subject."""


@dataclass(frozen=True)
class Admission:
    """Changes cases until they may be tried on a target.

    Attributes:
        texts: the target's promises.
        contract: whether it must also follow gatespec's own decisions, where other implementations may differ.
    """

    texts: tuple[str, ...] = ()
    contract: bool = True
    _in_vain: Counter[tuple[str, str]] = field(default_factory=Counter, compare=False, repr=False)

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

    def admits(self, op: str, dtype: str, case: Any) -> bool:
        """Whether a case may be tried as it is."""
        return self.admitted(op, dtype, case) == case

    def strategy(
        self,
        op: str,
        dtype: str,
        cases: SearchStrategy,
        *,
        decided: bool = False,
        sample: Callable[[], Sequence[Any]],
        subject: Collection[str] = (),
        any_call: bool = True,
    ) -> SearchStrategy | None:
        """A strategy that draws only admitted cases of another strategy; None if none of its cases is admitted.

        Args:
            sample: draws some cases. A feature that they all have, sizes apart, is the subject of the law, and an
                admitted case keeps it.
            subject: names of further features that an admitted case keeps if it has them.
            any_call: whether the law can be tried on any call. If not, an admitted case gains no feature that no case
                of the law has, sizes and values apart: the law may be unable to use it, as one about dense calls is
                with a packing.
        """
        if op not in BY_LAWS or (self.contract and not self.texts):
            return cases
        if self._in_vain[op, dtype] >= FRUITLESS:
            return None
        drawn = sample() if self.texts else ()
        needed = [each for each in features_of(op) if drawn and (each.name in subject or _is_shared(each, drawn))]
        named = () if any_call or not drawn else features_of(op)
        foreign = [each for each in named if not (each.of_sizes or each.of_values or any(map(each.present, drawn)))]
        lost = 0

        def changed(case: Any) -> Any | None:
            nonlocal lost
            if self._in_vain[op, dtype] >= FRUITLESS or lost >= LOST:
                return None
            kept = self.admitted(op, dtype, case, decided=decided)
            self._in_vain[op, dtype] = 0 if kept is not None else self._in_vain[op, dtype] + 1
            suits = (
                kept is not None
                and all(feature.present(kept) for feature in needed if feature.present(case))
                and not any(feature.present(kept) for feature in foreign)
            )
            lost = 0 if suits else lost + 1
            return kept if suits else None

        # Hypothesis would draw hundreds of cases to find out that none is admitted.
        if drawn and all(changed(case) is None for case in drawn):
            return None
        return cases.map(changed).filter(lambda case: case is not None)


def _is_shared(feature: Feature, sample: Sequence[Any]) -> bool:
    of_law = not feature.of_sizes and feature.name not in STATES
    return of_law and all(feature.present(case) for case in sample)


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
