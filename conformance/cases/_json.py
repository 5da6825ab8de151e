"""Cases as JSON and back: a report, a script or a file of known failures stores enough of a case to restore it.

A case class joins with `register`. Most are frozen dataclasses of plain values, which need nothing else. A class that
holds anything else (a function that makes a bad call) defines what is stored and how the case is restored.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


ToFields = Callable[[Any], dict[str, Any]]
FromFields = Callable[[dict[str, Any]], Any]
_kinds: dict[str, tuple[ToFields, FromFields]] = {}


def register(
    *, to_fields: ToFields = lambda case: vars(case), from_fields: FromFields | None = None
) -> Callable[[Class], Class]:
    """Allow the decorated class of cases to be written and read under its own name.

    Args:
        to_fields: returns the stored part of a case, plain values by name; by default every field of the dataclass.
        from_fields: restores the case from the stored part (with tuples where there were tuples); by default the class
            is called with it.

    Raises:
        ValueError: another class already has that name.
    """

    def join(cls: Class) -> Class:
        if cls.__name__ in _kinds:
            raise ValueError(f"there is a class of cases named {cls.__name__} already")
        _kinds[cls.__name__] = to_fields, from_fields or (lambda kept: cls(**kept))
        return cls

    return join


def to_json(case: Any) -> dict[str, Any]:
    """A case in the form that JSON takes: its class under ``kind``, then its fields; nested cases in the same form.

    Raises:
        TypeError: its class is not registered, or a field holds a value that JSON cannot represent exactly.
    """
    name = type(case).__name__
    if name not in _kinds:
        raise TypeError(f"a {name} cannot be written: its class has not joined by `cases.register`")
    return {"kind": name, **{field: _plain(x) for field, x in _kinds[name][0](case).items()}}


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, tuple | list):
        return [_plain(each) for each in x]
    return to_json(x)


def from_json(written: dict[str, Any]) -> Any:
    """The case that `to_json` wrote. Lists become tuples, which cases use.

    A law's own class is known once the law's module is imported (`conformance.laws.all_laws` imports them all).

    Raises:
        ValueError: no class is registered under that kind.
    """
    kept = dict(written)
    name = kept.pop("kind", None)
    if name not in _kinds:
        raise ValueError(f"there is no kind of case named {name!r}; there are {', '.join(sorted(_kinds))}")
    return _kinds[name][1]({field: _revived(x) for field, x in kept.items()})


def _revived(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(_revived(each) for each in x)
    return from_json(x) if isinstance(x, dict) else x
