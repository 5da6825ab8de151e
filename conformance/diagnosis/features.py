"""Features of a call: properties that a case has or lacks, each of which can be added and taken away alone.

The envelope, the causes of failures, promises and the search (which draws around what a target refuses) all speak of
the same features, by name. An operation lists its own: `conformance.diagnosis.mlstm_features` and its neighbours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Change = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A property of a call.

    Attributes:
        name: in a few words, ``initial state``; the same property has the same name in every operation.
        sentence: what it means, for a reader who sees the name for the first time.
        phrase: a clause that follows "wrong", such as ``where a call has an initial state``.
        present: whether a case has it.
        without: the case without it; everything else stays as near to what it was as it can.
        added: a case that has it, made of one that has none.
        contract: whether gatespec decides here what others may decide otherwise, so that targets which do not declare
            themselves gatespec's own are tried on it only by the laws about that.
        promise: the expression that rules it out (`conformance.diagnosis.promises`); empty for ``not`` and its name.
    """

    name: str
    sentence: str
    phrase: str
    present: Callable[[Any], bool]
    without: Change
    added: Change
    contract: bool = False
    promise: str = ""


def names(case: Any, features: Iterable[Feature]) -> frozenset[str]:
    """The names of the features that a case has."""
    return frozenset(feature.name for feature in features if feature.present(case))


def avoiding(case: Any, avoided: Iterable[str], features: Iterable[Feature]) -> Any:
    """The case without the features named in ``avoided``."""
    chosen = [feature for feature in features if feature.name in set(avoided)]
    # One removal can bring another feature back: a sequence of no steps becomes one of several.
    for _ in range(2):
        for feature in chosen:
            if feature.present(case):
                case = feature.without(case)
    return case


def needed(case: Any, happens: Callable[[Any], bool], features: Iterable[Feature]) -> tuple[Feature, ...]:
    """The features without any single one of which something no longer happens.

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
    return tuple(found)


def only(case: Any, kept: Iterable[str], features: Iterable[Feature]) -> Any:
    """The case without any feature but those named in ``kept``."""
    features = tuple(features)
    present = [feature.name for feature in features if feature.present(case)]
    return avoiding(case, set(present) - set(kept), features)
