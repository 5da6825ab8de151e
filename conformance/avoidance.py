"""Finds out what of a call a target refuses, and takes it out of later cases, so that those are served.

A target that serves only plain calls is so judged on as many cases as any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from conformance.diagnosis.features import Feature, avoiding

_VALUES = ("removed", "gates", "scale", "values", "held", "seed")
"""Fields of a case that change the values in its arrays and nothing else: a call is not refused for those."""

_STATES = ("initial state", "state cotangents", "final state")
"""Features that a law can do without, even if all its cases happen to have them."""

Blame = dict[tuple[frozenset[str], frozenset[str]], frozenset[str]]
"""What was found to be refused, by the features of the case that was refused and those that its law needs."""


class Avoidance:
    """The features that a target refuses in the cases of one law.

    Args:
        features: of the operation; none where nothing is known about its cases.
        sample: draws some cases of the law. What they all have is what the law is about, and is not avoided.
        max_steps: the longest sequence of a case.
        subject: names of features that the law is about whatever its cases have; they are not avoided either.
        blame: what other laws of the operation have found out; what is found out here is added.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        sample: Callable[[], list[Any]],
        max_steps: int,
        subject: Sequence[str] = (),
        blame: Blame | None = None,
    ):
        self.names: tuple[str, ...] = ()
        self._features = tuple(features)
        self._sample = sample
        self._max_steps = max_steps
        self._subject = frozenset(subject)
        self._blame: Blame = {} if blame is None else blame
        self._needed: frozenset[str] | None = None

    def around(self, case: Any) -> Any:
        """The case without what is refused; the case itself where that cannot be."""
        if not self.names:
            return case
        other = avoiding(case, self.names, self._features)
        return other if other.steps <= max(case.steps, self._max_steps) else case

    def learn(self, case: Any, refused: Callable[[Any], bool]) -> bool:
        """Find out for which of its features a case was refused.

        Args:
            refused: tries a case.

        Returns:
            Whether something is avoided from now on that was not before.
        """
        candidates = [feature for feature in self._features if feature.present(case) and _of_the_call(feature, case)]
        if self._needed is None and candidates:
            self._needed = self._common()
        candidates = [feature for feature in candidates if feature.name not in (self._needed or ())]
        if not candidates:
            return False
        key = frozenset(feature.name for feature in candidates), self._needed or frozenset()
        if key not in self._blame:
            self._blame[key] = self._refused_features(case, candidates, refused)
        new = [name for name in sorted(self._blame[key]) if name not in self.names]
        self.names += tuple(new)
        return bool(new)

    def _common(self) -> frozenset[str]:
        drawn = [{feature.name for feature in self._features if feature.present(case)} for case in self._sample()]
        common = set.intersection(*drawn) - set(_STATES) if drawn else set()
        return self._subject | common

    def _refused_features(self, case: Any, candidates: list[Feature], refused: Callable[[Any], bool]) -> frozenset[str]:
        """Begin with the case without any of them, and add one after the other for as long as the case is served."""
        names = [feature.name for feature in candidates]
        left_out = set(names)
        if refused(avoiding(case, left_out, self._features)):
            return frozenset()
        for name in names:
            fuller = avoiding(case, left_out - {name}, self._features)
            if not refused(fuller):
                left_out.discard(name)
        return frozenset(left_out)


def _of_the_call(feature: Feature, case: Any) -> bool:
    """Whether the feature is a matter of shapes and options, not of the values in the arrays."""
    other = feature.without(case)
    if not is_dataclass(other):
        return False
    kept = {each.name: getattr(case, each.name) for each in fields(other) if each.name in _VALUES}
    return replace(other, **kept) != case  # pyright: ignore[reportArgumentType]
