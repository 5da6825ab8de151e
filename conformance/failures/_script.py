"""The common parts of all scripts: the heading, the arrays to load, and values written as text."""

import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.base.dtypes import Array
from conformance.base.options import INTERPRETERS
from conformance.base.tensors import CODES
from conformance.judge.outcome import Counterexample
from conformance.laws import Law
from conformance.operations import Operation


@dataclass(frozen=True)
class Script:
    """A script that shows a failure.

    Attributes:
        text: the script.
        tensors: the arrays that are saved next to it.
        marker: its output if it fails as it should.
    """

    text: str
    tensors: Mapping[str, Array]
    marker: str


def heading(law: Law, dtype: str, found: Counterexample) -> list[str]:
    """The docstring: the law, the case, and the meaning of the exit status."""
    said = [
        *textwrap.wrap(f"{law.id} in {dtype}: {law.sentence}", 110),
        "",
        *textwrap.wrap(law.equation, 106, initial_indent="    ", subsequent_indent="    "),
        "",
        *textwrap.wrap(f"The smallest case found: {found.case}. Exit status 1 as long as the law is broken.", 110),
    ]
    text = "\n".join(said).replace("\\", "\\\\").replace('"""', "'''")
    return [f'"""{text}', '"""', ""]


def rendered(template: str, **values: Any) -> list[str]:
    """The lines of a part of a script."""
    return _templates().get_template(f"{template}.jinja").render(**values).splitlines()


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("conformance.failures"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    templates.filters.update(repr=repr, with_comma=", {}".format)
    return templates


def environment() -> list[str]:
    """Lines that enable the interpreters under which the suite ran."""
    on = [name for name in INTERPRETERS.values() if os.environ.get(name)]
    return ["import os", *(f'os.environ["{name}"] = "{os.environ[name]}"' for name in on)] if on else []


def assigned(names: Sequence[str], place: str = "") -> list[str]:
    """``q, k = (saved[name] for name in ("q", "k"))``."""
    if not names:
        return []
    if len(names) == 1:
        return [f'{names[0]} = saved["{names[0]}"]{place}']
    quoted = ", ".join(f'"{name}"' for name in names)
    return [f"{', '.join(names)} = (saved[name]{place} for name in ({quoted}))"]


def literal(value: Any, name: str, tensors: dict[str, Array]) -> str:
    """A value in Python's syntax; arrays inside it are added to ``tensors``, with names based on ``name``.

    Raises:
        ValueError: the value cannot be written in this way.
    """
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    if isinstance(value, Array):
        if value.dtype not in CODES:
            raise ValueError(f"an array of {value.dtype} cannot be saved")
        stem = name if name not in tensors else f"{name}_{len(tensors)}"
        tensors[stem] = value
        return stem
    if isinstance(value, tuple | list):
        parts = [literal(each, f"{name}_{at}", tensors) for at, each in enumerate(value)]
        if isinstance(value, tuple):
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        return f"[{', '.join(parts)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {literal(each, str(key), tensors)}" for key, each in value.items()) + "}"
    raise ValueError(f"a {type(value).__name__} cannot be written down")


Words = Mapping[str, str]


def written_call(operation: Operation, given: Collection[str], options: Words, said: Mapping[str, Any]) -> str:
    """A call of the public function.

    Args:
        given: the names of the given arrays, which are also the variables of the script.
        options: the options as text.
        said: the options themselves.
    """
    words = {name: options.get(name, str(value)) for name, value in operation.passed(said).items()}
    words |= {name: word for name, word in options.items() if name not in said}
    positional, keywords = operation.arguments_of({name: name for name in given}, words, _tuple_of(operation))
    function = operation.name if operation.curried is None else f"{operation.name}({options[operation.curried]})"
    return _call(function, positional, keywords)


def written_backward(
    operation: Operation, given: Collection[str], options: Words, cotangents: Collection[str], function: Callable | None
) -> str:
    """A call of a target's own backward.

    Args:
        cotangents: the names of the outputs whose cotangents are given, each in a variable ``d_NAME``.
        function: the backward, if there is one.
    """
    taken = None if function is None else set(inspect.signature(function).parameters)
    variables = {name: f"d_{name}" for name in cotangents}
    positional, keywords = operation.backward_arguments_of(
        {name: name for name in given}, options, variables, taken, _tuple_of(operation)
    )
    name = operation.backward_name
    if operation.backward.method is not None:
        name = f"{operation.name}({options[operation.curried or '']}).{operation.backward.method}"
    return _call(name, positional, keywords)


def written_gradient(operation: Operation, name: str) -> str:
    """The gradient of an array, taken from ``gradients``, the result of a target's own backward."""
    if operation.backward.in_order:
        return f"gradients[{operation.primals.index(name)}]"
    if operation.state is not None and name in operation.state_arguments:
        return f'gradients["{operation.state.name}"][{operation.state_arguments.index(name)}]'
    return f'gradients["{name}"]'


def written_result(operation: Operation, said: Mapping[str, Any]) -> str:
    """The left side of the assignment of a call's result: ``h, (C, n, m)``."""
    parts = operation.result_of(said)
    return ", ".join(part if isinstance(part, str) else f"({', '.join(part)})" for part in parts)


def output_names(operation: Operation, said: Mapping[str, Any]) -> list[str]:
    """The outputs of a call, in the order in which `written_result` names them."""
    parts = operation.result_of(said)
    return [name for part in parts for name in ((part,) if isinstance(part, str) else part)]


def _tuple_of(operation: Operation) -> Callable[..., str]:
    name = "" if operation.state is None else operation.state.type.__name__
    return lambda *parts: f"{name}({', '.join(map(str, parts))})"


def _call(function: str, positional: list[Any], keywords: Mapping[str, Any]) -> str:
    return f"{function}({', '.join([*map(str, positional), *(f'{name}={word}' for name, word in keywords.items())])})"
