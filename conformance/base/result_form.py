"""The form of a function's result: arrays by name, or one sentence about a result of another form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.base.exceptions import name_of, raised_by_target

Structure = tuple[str | tuple[str, ...], ...]
"""The names of the arrays in a result, ``("h", ("C", "n", "m"))``; a single name is a result that is one array."""

FEW = 4
"""The most elements of a tuple, a list or a dict that a sentence names one by one."""

DEEP = 2
"""Tuples and lists inside as many others are only counted."""

KINDS = ("sparse", "mkldnn", "nested", "meta", "quantized")
"""Tensors of PyTorch whose elements cannot be read like those of an ordinary one."""

LONGEST = 60
"""The most characters of a number or a key that a sentence shows."""

_NUMBERS = (bool, int, float, complex)


class WrongResultError(Exception):
    """A function returned something that does not have the form of its result; the text says what, and the form.

    Attributes:
        function: the name of the function.
    """

    def __init__(self, function: str, text: str):
        super().__init__(text)
        self.function = function


@dataclass(frozen=True)
class ArrayKind:
    """The arrays of a framework.

    Attributes:
        name: the name of their type, ``torch.Tensor``.
        type: their type.
        includes: whether an object is, or becomes, one of them with real numbers as elements.
    """

    name: str
    type: type
    includes: Callable[[Any], bool]


ANYTHING = ArrayKind("array", object, lambda x: True)
"""Stand-ins for arrays."""


def named(
    function: str, structure: Structure, result: Any, kind: ArrayKind, told: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arrays of a result by name. A list counts as the tuple of its elements.

    Args:
        told: the options of the call on which the form depends.

    Raises:
        WrongResultError: the result has another form.
    """
    found: dict[str, Any] = {}
    if not _fill(found, structure[0] if len(structure) == 1 else structure, result, kind):
        call = " ".join([function, *(f"with {name}={option!r}" for name, option in (told or {}).items())])
        raise WrongResultError(
            function, f"{call} returned {_described(result, kind)}; its result is {_form(structure, kind)}"
        )
    return found


def expect_form(function: str, structure: str, fits: bool, result: Any, kind: ArrayKind) -> None:
    """Check the form of a backward's result.

    Args:
        structure: the form in words.
        fits: whether the result has it.
    """
    if not fits:
        raise WrongResultError(function, f"{function} returned {_described(result, kind)}; its result is {structure}")


def expect_arrays(function: str, gradients: Mapping[str, Any], kind: ArrayKind) -> None:
    """Check that gradients are arrays; a gradient may be None."""
    for name, x in gradients.items():
        if x is not None:
            expect_array(function, f"the gradient of {name}", x, kind)


def expect_array(function: str, name: str, x: Any, kind: ArrayKind) -> None:
    """Check that one result of a function is an array."""
    if not kind.includes(x):
        text = f"{function} returned {_described(x, kind)} as {name}, which is {_array(kind)}"
        raise WrongResultError(function, text)


def expect_shapes(
    function: str, outputs: dict[str, Any], cotangents: Mapping[str, Any], of: str = ""
) -> dict[str, Any]:
    """The outputs, if they have the shapes of their cotangents, which are those of the definition's outputs.

    Args:
        of: words before each name.
    """
    for name, d in cotangents.items():
        if name in outputs and tuple(outputs[name].shape) != tuple(d.shape):
            shape = list(outputs[name].shape)
            text = f"{function} returned {of}{name} with the shape {shape}; its shape is {list(d.shape)}"
            raise WrongResultError(function, text)
    return outputs


def _fill(found: dict[str, Any], form: Any, got: Any, kind: ArrayKind) -> bool:
    """Add the arrays to ``found``; False if the result has another form."""
    if isinstance(form, str):
        found[form] = got
        return kind.includes(got)
    if not isinstance(got, tuple | list) or len(got) != len(form):
        return False
    return all(_fill(found, name, part, kind) for name, part in zip(form, got, strict=True))


def _array(kind: ArrayKind) -> str:
    return f"a {kind.name} of real numbers"


def _form(structure: Structure, kind: ArrayKind) -> str:
    if len(structure) == 1:
        return f"{structure[0]}, {_array(kind)}"
    parts = (part if isinstance(part, str) else f"({', '.join(part)})" for part in structure)
    return f"({', '.join(parts)}), where each is {_array(kind)}"


def _described(x: Any, kind: ArrayKind, depth: int = 0) -> str:
    """A few words on what a function returned."""
    if x is None:
        return "None"
    if kind.includes(x):
        return f"a {kind.name}"
    if isinstance(x, str):
        x = str.__str__(x)
        return f"the string {x[:20]!r}" + ("…" if len(x) > 20 else "")
    if isinstance(x, _NUMBERS):
        return f"the number {_written(x)}"
    if isinstance(x, Mapping):
        keys = ", ".join(_written(key) for key in list(x)[:FEW])
        return f"a dict with the keys {keys}{', …' if len(x) > FEW else ''}" if x else "an empty dict"
    if isinstance(x, tuple | list):
        return _elements(x, kind, depth)
    return _type(x, kind)


def _written(x: Any) -> str:
    """The representation of an object of a target, cut if it is long."""
    try:
        text = str.__str__(repr(x))
    except raised_by_target() as error:
        return f"(an object that raises {name_of(error)} when it is printed)"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _is_of(word: str, x: Any) -> bool:
    return word in str(getattr(x, "layout", "")) or getattr(x, f"is_{word}", False) is True


def _elements(x: tuple | list, kind: ArrayKind, depth: int) -> str:
    word = "tuple" if isinstance(x, tuple) else "list"
    if not x:
        return f"an empty {word}"
    numbers = all(isinstance(each, _NUMBERS) for each in x)
    if numbers or len(x) > FEW or depth == DEEP:
        return f"a {word} of {len(x)} {'number' if numbers else 'element'}{'s' if len(x) > 1 else ''}"
    parts = ", ".join(_described(each, kind, depth + 1) for each in x)
    return f"({parts}{',' if len(x) == 1 else ''})" if word == "tuple" else f"[{parts}]"


def _type(x: Any, kind: ArrayKind) -> str:
    own = type(x)
    name = (
        own.__qualname__ if own.__module__ == "builtins" else f"{own.__module__.partition('.')[0]}.{own.__qualname__}"
    )
    if isinstance(x, kind.type):
        name = kind.name
    adjective = next((word for word in KINDS if _is_of(word, x)), None)
    name = name if adjective is None else f"{adjective} {name}"
    elements = str(getattr(x, "dtype", "")).removeprefix("torch.")
    article = "an" if name[0] in "aeiou" or name.startswith("mkl") else "a"
    return f"{article} {name}{f' of {elements}' if elements else ''}"
