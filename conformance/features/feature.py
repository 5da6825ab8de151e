"""Features of a call: properties that a case has or lacks, each of which can be added and removed separately.

The envelope, the causes of failures and the search (which avoids features that a target refuses) refer to the same
features by name. Each operation has its own list: `conformance.features.mlstm` and its neighbours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

Change = Callable[[Any], Any]

STATES = ("initial state", "state cotangents", "final state")
"""Features that a law can do without, even if all its cases happen to have them."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A property of a call.

    Attributes:
        name: a few words, ``initial state``; the same property has the same name in every operation.
        sentence: its meaning, for a reader who sees the name for the first time.
        phrase: the clause of `where`, if that is not ``where`` and the sentence.
        present: whether a case has it.
        without: returns the case without it; everything else changes as little as possible.
        added: returns a case that has it, made from one that does not.
        contract: whether it concerns gatespec's own decisions; targets that do not declare themselves gatespec's own
            are then tried on it only by the laws about these decisions.
        implies: names of wider features, which every case with this one has.
        of_sizes: whether it concerns the sizes of arrays alone, so that one call can have all such features at once.
        of_values: whether it concerns the values of gates, or what follows from them.
        large: whether it concerns sizes beyond small ones, so that a call with several of such features takes long.
        letters: the sizes that it concerns if they are numbers beyond a limit, or no multiples: ``S``, or ``K`` and
            ``V``.
    """

    name: str
    sentence: str
    present: Callable[[Any], bool]
    without: Change
    added: Change
    phrase: str = ""
    contract: bool = False
    implies: tuple[str, ...] = ()
    of_sizes: bool = False
    of_values: bool = False
    large: bool = False
    letters: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """A clause that follows "wrong", such as ``where a call has an initial state``."""
        return self.phrase or f"where {self.sentence}"


def of_field(field: str, off: Any, on: Any, **said: Any) -> Feature:
    """Return the feature that a field of a case differs from one value.

    Args:
        off: its value in a case without the feature.
        on: its value in a case to which the feature is added.
        said: the other fields of the `Feature`.
    """
    return Feature(
        present=lambda case: getattr(case, field) != off,
        without=lambda case: replace(case, **{field: off}),
        added=lambda case: replace(case, **{field: on}),
        **said,
    )


def removed(name: str) -> Change:
    """Return the change that removes a property from a case's arrays (`conformance.cases._gates`)."""
    return lambda case: replace(case, removed=tuple(dict.fromkeys((*case.removed, name))))


def restored(case: Any, name: str, **fields: Any) -> Any:
    """Return the case whose arrays may have a property again."""
    return replace(case, removed=tuple(each for each in case.removed if each != name), **fields)


def names(case: Any, features: Iterable[Feature]) -> frozenset[str]:
    """Return the names of the features that a case has."""
    return frozenset(feature.name for feature in features if feature.present(case))


def avoiding(case: Any, avoided: Iterable[str], features: Iterable[Feature]) -> Any:
    """Return the case without the features named in ``avoided``."""
    chosen = [feature for feature in features if feature.name in set(avoided)]
    # One removal can bring another feature back: a sequence of no steps becomes one of several.
    for _ in range(2):
        for feature in chosen:
            if feature.present(case):
                case = feature.without(case)
    return case


def needed(case: Any, happens: Callable[[Any], bool], features: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return the features that are each necessary for something to happen; of nested ones, only the narrowest.

    Args:
        case: a case of which ``happens`` is true.
        happens: tries a case, for example whether the target refuses it.
    """
    found = []
    for feature in features:
        if not feature.present(case):
            continue
        other = feature.without(case)
        if not feature.present(other) and not happens(other):
            found.append(feature)
    implied = {name for feature in found for name in feature.implies}
    return tuple(feature for feature in found if feature.name not in implied)


def only(case: Any, kept: Iterable[str], features: Iterable[Feature]) -> Any:
    """Return the case with no features except those named in ``kept``."""
    features = tuple(features)
    present = [feature.name for feature in features if feature.present(case)]
    return avoiding(case, set(present) - set(kept), features)
