"""Finds out which features of a call a target refuses, and removes them from later cases so that those are served.

A target that serves only plain calls is therefore judged on as many cases as any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from conformance.features.feature import STATES, Feature, avoiding, names

_VALUES = ("removed", "gates", "scale", "values", "held", "seed")
"""Fields of a case that affect only the values in its arrays: a call is not refused because of them."""

Blame = dict[tuple[frozenset[str], frozenset[str]], frozenset[str]]
"""The refused features, by the features of the refused case and those that its law needs."""


@dataclass
class Avoidance:
    """The features that a target refuses in the cases of one law.

    Attributes:
        features: the features of the operation; empty if nothing is known about its cases.
        sample: draws some cases of the law. The features that they share are the law's subject and are not avoided.
        max_steps: the number of steps of the longest sequence of a case.
        subject: names of further features that are the law's subject and are not avoided.
        blame: refused features found by other laws of the operation; those found here are added.
        names: the refused features.
    """

    features: Sequence[Feature]
    sample: Callable[[], list[Any]]
    max_steps: int
    subject: Sequence[str] = ()
    blame: Blame = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> frozenset[str]:
        """The features that the law cannot do without."""
        drawn = [names(case, self.features) for case in self.sample()]
        return frozenset(self.subject) | (frozenset.intersection(*drawn) - set(STATES) if drawn else set())

    def around(self, case: Any) -> Any:
        """The case without the refused features; the case itself if that is not possible."""
        if not self.names:
            return case
        other = avoiding(case, self.names, self.features)
        return other if other.steps <= max(case.steps, self.max_steps) else case

    def learn(self, case: Any, refused: Callable[[Any], bool]) -> bool:
        """Find out which features of a case make the target refuse it.

        Args:
            refused: tries a case and returns whether it is refused.

        Returns:
            Whether a feature is avoided from now on that was not avoided before.
        """
        candidates = [feature for feature in self.features if feature.present(case) and _of_the_call(feature, case)]
        candidates = [feature for feature in candidates if feature.name not in self.needed]
        if not candidates:
            return False
        key = frozenset(feature.name for feature in candidates), self.needed
        if key not in self.blame:
            self.blame[key] = self._refused_features(case, candidates, refused)
        new = [name for name in sorted(self.blame[key]) if name not in self.names]
        self.names += tuple(new)
        return bool(new)

    def _refused_features(self, case: Any, candidates: list[Feature], refused: Callable[[Any], bool]) -> frozenset[str]:
        """Start from the case without any candidate feature, and add candidates one by one while it is served."""
        # Wider features first: of those that imply each other, only the narrowest is then left out.
        names = [feature.name for feature in sorted(candidates, key=lambda feature: len(feature.implies))]
        left_out = set(names)
        if refused(avoiding(case, left_out, self.features)):
            return frozenset()
        for name in names:
            fuller = avoiding(case, left_out - {name}, self.features)
            if not refused(fuller):
                left_out.discard(name)
        return frozenset(left_out)


def _of_the_call(feature: Feature, case: Any) -> bool:
    """Whether the feature concerns shapes and options, not the values in the arrays."""
    other = feature.without(case)
    if not is_dataclass(other):
        return False
    kept = {each.name: getattr(case, each.name) for each in fields(other) if each.name in _VALUES}
    return replace(other, **kept) != case  # pyright: ignore[reportArgumentType]
