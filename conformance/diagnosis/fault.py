"""A fault of an operation, as experiments show it."""

from dataclasses import dataclass, field

from conformance.diagnosis.necessity import natures_of
from conformance.diagnosis.staleness import Stale
from conformance.features.feature import Feature
from conformance.formulas.formula import Formula
from conformance.formulas.judged import Judged

MOST = 3
"""Number of features that a sentence names; more of them describe one call rather than a condition."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of an operation.

    Attributes:
        aspect: ``value`` or ``gradient``.
        formula: the formula that is computed instead; None if it was not recognised.
        features: the features without which it does not show.
        example: a case that shows it.
        dtypes: the dtypes in which it was seen.
        patterns: see `conformance.diagnosis.patterns`.
        stale: how its results are those of earlier calls, if they are.
    """

    op: str
    aspect: str
    formula: Formula | None
    features: tuple[Feature, ...]
    example: Judged
    dtypes: tuple[str, ...]
    patterns: dict[str, str] = field(default_factory=dict)
    stale: Stale | None = None

    @property
    def plain(self) -> bool:
        """Whether only its features, and how arrays are wrong, are known of it."""
        return self.formula is None and self.stale is None

    @property
    def anywhere(self) -> bool:
        """Whether any call may show it, and only after another one: its results are those of an earlier call."""
        return self.stale is not None and not self.stale.differing

    @property
    def natures(self) -> frozenset[str]:
        return natures_of(self.example)

    @property
    def where(self) -> str:
        """The calls that show it, as a clause; empty if every call does."""
        if len(self.features) > MOST:
            return f"in rare calls, those that combine {len(self.features)} features"
        return " and ".join(feature.where for feature in self.features)
