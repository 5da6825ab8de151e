"""Sizes that a kernel may ask for and that the table of features does not have: equal to 1, multiples, few steps.

They are features that the search avoids where a target refuses them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from conformance.features.calls import not_multiple, several_blocks
from conformance.features.feature import Change, Feature

DIMS = ("K", "V", "H")


def _feature(name: str, sentence: str, without: Change) -> Feature:
    """The feature that a change of sizes has an effect on a case, or on the call inside one of the fwbw interface."""

    def changed(case: Any) -> Any:
        return replace(case, inner=without(case.inner)) if hasattr(case, "inner") else without(case)

    return Feature(
        name=name,
        sentence=sentence,
        present=lambda case: changed(case) != case,
        without=changed,
        added=lambda case: case,
        of_sizes=True,
    )


def _of_dims(name: str, sentence: str, size: Callable[[int], int]) -> Feature:
    def without(case: Any) -> Any:
        return replace(case, **{dim: size(getattr(case, dim)) for dim in DIMS if hasattr(case, dim)})

    return _feature(name, sentence, without)


def _multiple(factor: int) -> Feature:
    sentence = f"some of K, V and H is not a multiple of {factor}"
    return _of_dims(f"head dims not a multiple of {factor}", sentence, lambda size: -(-size // factor) * factor)


def _length(factor: int) -> Feature:
    feature = not_multiple(factor)
    return _feature(feature.name, feature.sentence, feature.without)


OF_DIMS = (
    *(_multiple(factor) for factor in (32, 64, 128)),
    _of_dims("head dims above 1", "some of K, V and H is above 1", lambda size: min(size, 1)),
)
OF_STEPS = (_length(64), _length(128))
SIZES = (*OF_DIMS, *OF_STEPS)
"""Those that are tried only where a call without any feature is refused."""

SHORT = several_blocks("S above 16", "some sequence has more than 16 steps", "where S is above 16", lambda case: 16)
LIMITS = (_feature(SHORT.name, SHORT.sentence, SHORT.without),)
"""Those that are tried together with the features."""


def choices() -> Iterator[tuple[str, ...]]:
    """The names of sizes that may have to be avoided together, fewest first."""
    yield ()
    yield from ((each.name,) for each in SIZES)
    yield from ((dims.name, steps.name) for dims in OF_DIMS for steps in OF_STEPS)
