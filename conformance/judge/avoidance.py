"""Finds out which features of a call a target refuses, and removes them from later cases so that those are served.

A target that serves only plain calls is therefore judged on as many cases as any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from conformance.features.feature import STATES, Feature, avoiding, names
from conformance.features.sizes import LIMITS, SIZES, choices

_VALUES = ("removed", "gates", "scale", "values", "held", "seed")
"""Fields of a case that affect only the values in its arrays: a call is not refused because of them."""

FRUITLESS = 3
"""Number of cases that are refused with any sizes, after which no other sizes are tried."""


@dataclass
class Blame:
    """What the laws of an operation have found out about the calls that a target refuses in one dtype.

    Attributes:
        features: the refused features, by the features of the refused case and those that its law needs.
        sizes: the names of the sizes (`conformance.features.sizes`) that helped last.
        in_vain: the number of cases that were refused with any sizes.
    """

    features: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    in_vain: int = 0


@dataclass
class Avoidance:
    """The features that a target refuses in the cases of one law.

    Attributes:
        features: the features of the operation; empty if nothing is known about its cases.
        sample: draws some cases of the law. The features that they share, sizes apart, are the law's subject and are
            not avoided.
        max_steps: the number of steps of the longest sequence of a case.
        subject: names of further features that are the law's subject and are not avoided.
        blame: what other laws of the operation found out; what is found here is added.
        names: the refused features.
    """

    features: Sequence[Feature]
    sample: Callable[[], list[Any]]
    max_steps: int
    subject: Sequence[str] = ()
    blame: Blame = field(default_factory=Blame)
    names: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> frozenset[str]:
        """The features that the law cannot do without."""
        usual = {*STATES, *(feature.name for feature in self.features if feature.of_sizes)}
        drawn = [names(case, self.features) for case in self.sample()]
        return frozenset(self.subject) | (frozenset.intersection(*drawn) - usual if drawn else frozenset())

    def around(self, case: Any) -> Any:
        """The case without the refused features; the case itself if that is not possible."""
        if not self.names:
            return case
        other = self._without(case, self.names)
        return other if other.steps <= max(case.steps, self.max_steps) else case

    def _without(self, case: Any, avoided: Sequence[str] | set[str]) -> Any:
        return avoiding(case, avoided, (*LIMITS, *self.features, *SIZES))

    def learn(self, case: Any, refused: Callable[[Any], bool]) -> bool:
        """Find out which features of a case make the target refuse it.

        Args:
            refused: tries a case and returns whether it is refused.

        Returns:
            Whether a feature is avoided from now on that was not avoided before.
        """
        if not self.features:
            return False
        others = (feature for feature in (*LIMITS, *self.features) if feature.name not in self.needed)
        candidates = [feature for feature in others if feature.present(case) and _of_the_call(feature, case)]
        key = frozenset(feature.name for feature in candidates), self.needed
        if key not in self.blame.features:
            self.blame.features[key] = self._refused_features(case, candidates, refused)
        new = [name for name in sorted(self.blame.features[key]) if name not in self.names]
        self.names += tuple(new)
        return bool(new)

    def _refused_features(self, case: Any, candidates: list[Feature], refused: Callable[[Any], bool]) -> frozenset[str]:
        """Start from the case without any candidate feature, and add candidates one by one while it is served."""
        # Sizes come last, so that one is left out rather than an option that serves other sizes. Wider features come
        # before the narrower ones that imply them, so that only the narrowest is left out.
        ordered = sorted(candidates, key=lambda feature: (feature.of_sizes, len(feature.implies)))
        names = [feature.name for feature in ordered]
        others = choices() if self.blame.in_vain < FRUITLESS else ((),)
        for sizes in (self.blame.sizes, *others):
            # What is known to be refused stays away: one size that is left out may bring another one back.
            left_out = {*names, *sizes, *self.names}
            if not refused(self._without(case, left_out)):
                break
        else:
            self.blame.in_vain += 1
            return frozenset()
        self.blame.sizes = sizes
        for name in (*sizes, *names):
            if not refused(self._without(case, left_out - {name})):
                left_out.discard(name)
        return frozenset(left_out)


def _of_the_call(feature: Feature, case: Any) -> bool:
    """Whether the feature concerns shapes and options, not the values in the arrays."""
    other = feature.without(case)
    if not is_dataclass(other):
        return False
    kept = {each.name: getattr(case, each.name) for each in fields(other) if each.name in _VALUES}
    return replace(other, **kept) != case  # pyright: ignore[reportArgumentType]
