"""Checks that need not be made twice.

What a check sees of a tensor is its shape, dtype and device. A call that agrees in all of these with one that was let
through is let through as well, for a tenth of the Python: beside one step of a recurrence, checks are what costs.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from reference.arguments import MLSTMState

_MOST = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SCALARS = (type(None), bool, int, float, str)


def cached_by_signature(checked: Callable) -> Callable:
    """The function with its answers kept, by what can be seen of its arguments without reading a value.

    Only answers are kept: a call that raises is checked, and raises, again. So is every call whose arguments are not
    all plain tensors, states of them, and scalars, and every call under a tracer, where a shape may be a symbol.

    Args:
        checked: answers from shapes, dtypes, devices and scalars alone, and from nothing that changes in a process.
    """
    answers: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(checked)
    def answer(*arguments: Any) -> Any:
        key = _seen(arguments)
        if key is None:
            return checked(*arguments)
        if key not in answers:
            found = checked(*arguments)
            if len(answers) >= _MOST:
                answers.clear()
            answers[key] = found
        return answers[key]

    return answer


def _seen(arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """All that a check may see of the arguments, as a key; None where they are to be looked at every time."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return None
    key: list[Any] = []
    for x in arguments:
        kind = type(x)
        if kind in _PLAIN:
            key += (x.shape, x.dtype, x.device)
        elif kind in _SCALARS:
            # 1, 1.0 and True are equal, and not the same to a check.
            key += (kind, x)
        elif kind is MLSTMState:
            parts = _seen(x)
            if parts is None:
                return None
            key.append(parts)
        else:
            return None
    return tuple(key)
