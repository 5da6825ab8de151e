"""Cases as JSON and back: what a report, a script or a file of known failures keeps of one is enough to have it again.

A case class joins with `register`. Most are frozen dataclasses of plain values, for which nothing more need be said; a
class that holds anything else (a function that makes a bad call) says what is kept and how it is found again.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class _Kind:
    to_fields: Callable[[Any], dict[str, Any]]
    from_fields: Callable[[dict[str, Any]], Any]


_kinds: dict[str, _Kind] = {}


def register(
    *,
    to_fields: Callable[[Any], dict[str, Any]] | None = None,
    from_fields: Callable[[dict[str, Any]], Any] | None = None,
) -> Callable[[Class], Class]:
    """Let the decorated class of cases be written and read under its own name.

    Args:
        to_fields: what is kept of a case, plain values by name; every field of the dataclass unless given.
        from_fields: the case of what was kept (tuples where there were tuples); the class called with it unless given.

    Raises:
        ValueError: another class has that name already.
    """

    def join(cls: Class) -> Class:
        if cls.__name__ in _kinds:
            raise ValueError(f"there is a class of cases named {cls.__name__} already")
        _kinds[cls.__name__] = _Kind(to_fields or _all_fields, from_fields or (lambda kept: cls(**kept)))
        return cls

    return join


def _all_fields(case: Any) -> dict[str, Any]:
    return {field.name: getattr(case, field.name) for field in fields(case)}


def to_json(case: Any) -> dict[str, Any]:
    """A case as JSON takes it: its class under ``kind``, then its fields; a case inside a case likewise.

    Raises:
        TypeError: its class never joined, or a field holds what JSON cannot say exactly.
    """
    name = type(case).__name__
    if name not in _kinds:
        raise TypeError(f"a {name} cannot be written: its class has not joined by `cases.register`")
    return {"kind": name, **{field: _plain(x) for field, x in _kinds[name].to_fields(case).items()}}


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, tuple | list):
        return [_plain(each) for each in x]
    return to_json(x)


def from_json(written: dict[str, Any]) -> Any:
    """The case that `to_json` wrote. Lists become tuples, which is what cases hold.

    A class of a law's own is known once that module is imported (`conformance.laws.all_laws` imports them all).

    Raises:
        ValueError: there is no such kind of case.
    """
    kept = dict(written)
    name = kept.pop("kind", None)
    if name not in _kinds:
        raise ValueError(f"there is no kind of case named {name!r}; there are {', '.join(sorted(_kinds))}")
    return _kinds[name].from_fields({field: _revived(x) for field, x in kept.items()})


def _revived(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(_revived(each) for each in x)
    return from_json(x) if isinstance(x, dict) else x
