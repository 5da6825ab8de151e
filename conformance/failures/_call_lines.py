"""Calls written in Python from the record of the operation, for scripts that repeat a call."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from conformance.operations import Operation

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
    positional, keywords = operation.arguments_of(_names(given), words, _tuple_of(operation))
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
        _names(given), options, variables, taken, _tuple_of(operation)
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


def _names(given: Collection[str]) -> dict[str, str]:
    return {name: name for name in given}


def _tuple_of(operation: Operation) -> Callable[..., str]:
    name = "" if operation.state is None else operation.state.type.__name__
    return lambda *parts: f"{name}({', '.join(map(str, parts))})"


def _call(function: str, positional: list[Any], keywords: Mapping[str, Any]) -> str:
    return f"{function}({', '.join([*map(str, positional), *(f'{name}={word}' for name, word in keywords.items())])})"
