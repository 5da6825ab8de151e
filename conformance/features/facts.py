"""The facts about a call, by the names that a promise may use: its sizes, options and features."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.features import described, features_of
from conformance.operations import Operation

SIZES = ("S", "B", "T", "N", "K", "V", "H")
FINITE = {
    "f finite": ("forget gates of -inf", "forget gates of +inf", "infinite gates"),
    "i finite": ("input gates of -inf",),
    "gates finite": ("forget gates of -inf", "forget gates of +inf", "input gates of -inf", "infinite gates"),
}
"""Names of two words, and the features that they exclude."""


def identifier(feature: str) -> str:
    """The name of a feature in a promise."""
    spelt = feature.replace("-inf", "minus_inf").replace("+inf", "plus_inf")
    return re.sub(r"\W+", "_", spelt).strip("_")


class AbsentError(Exception):
    """A promise contains a name that the operation does not have."""


class Facts(Mapping[str, Any]):
    """The names that a promise may use, with their values for one case; a feature is looked up when it is needed."""

    def __init__(self, operation: Operation, case: Any, dtype: str, S: int | None):
        self._known = {**_sizes(case), **_options(operation, case), "dtype": dtype}
        if S is not None:
            self._known["S"] = S
        self._features = {feature.name: feature for feature in features_of(operation)}
        self._case = case

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        words = name.replace("__", " ")
        if words in FINITE:
            ruled_out = [self._features[each] for each in FINITE[words] if each in self._features]
            if not ruled_out:
                raise AbsentError(name)
            return not any(feature.present(self._case) for feature in ruled_out)
        for feature in self._features.values():
            if identifier(feature.name) == name:
                return feature.present(self._case)
        raise AbsentError(name)

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def facts_of(operation: Operation, case: Any, dtype: str) -> list[Facts]:
    """The facts of a case: for a packed case, one entry for each length among its sequences."""
    lengths = getattr(of_mlstm(case), "lengths", None)
    if lengths is None:
        return [Facts(operation, case, dtype, None)]
    return [Facts(operation, case, dtype, S) for S in sorted(set(lengths))] or [Facts(operation, case, dtype, 0)]


def of_mlstm(case: Any) -> Any:
    return getattr(case, "inner", case)


def _sizes(case: Any) -> dict[str, Any]:
    own = of_mlstm(case)
    lengths = getattr(own, "lengths", None)
    found = {name: getattr(own, name) for name in SIZES if isinstance(getattr(own, name, None), int)}
    if lengths is not None:
        found |= {"B": len(lengths), "T": sum(lengths)}
    elif "B" in found:
        found["T"] = found["B"] * found["S"]
    return found


def _options(operation: Operation, case: Any) -> dict[str, Any]:
    """The options on which a promise may depend, each with its default where the case does not give it."""
    options = [option for option in operation.options if option.portable]
    # A case of a law's own need not be a call of the operation.
    given = case.options() if hasattr(case, "options") else {}
    found = {option.name: given.get(option.name, option.default) for option in options}
    config = found.pop(operation.curried or "", None)
    return {**found, **(config or {})}


def numbers_in(operation: Operation) -> set[str]:
    """The names of sizes and options, which a promise about an operation may compare."""
    case = described(operation).plain(0)
    return {*_sizes(case), *_options(operation, case), "dtype"}


def names_in(operation: Operation) -> set[str]:
    """Every name that may occur in a promise about an operation."""
    features = {feature.name for feature in features_of(operation)}
    finite = {words.replace(" ", "__") for words, ruled_out in FINITE.items() if features & set(ruled_out)}
    return {*numbers_in(operation), *finite, *map(identifier, features)}
