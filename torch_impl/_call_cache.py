"""A cache of checked calls: the backend that a call takes, by the signature of its arguments.

A check depends on the shapes, dtypes and devices of tensors and on the values of scalars. A call that agrees in all of
these with an earlier successful call is not checked again, which takes a tenth of the Python time. For a single step of
a recurrence, checks would otherwise dominate.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from reference.arguments import MLSTMState, SLSTMState
from torch_impl._arrays import PLAIN

_MOST = 1024
_SCALARS = (type(None), bool, int, float, str)


def cached_by_signature(checked: Callable) -> Callable:
    """Cache the function's answers by what can be read from its arguments without reading a tensor's values.

    Only answers are cached: a call that raises is checked again and raises again. Calls with arguments other than plain
    tensors, states of plain tensors and scalars are never cached, and neither are calls under a tracer, where a shape
    may be symbolic.

    Args:
        checked: its answer must depend only on shapes, dtypes, devices and scalars, and on nothing that can change
            during a process.
    """
    answers: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(checked)
    def answer(*arguments: Any) -> Any:
        traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
        key = None if traced else _seen(arguments)
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
    """A key of everything in the arguments that a check may depend on; None if each such call must be checked."""
    key: list[Any] = []
    pending = [*arguments]
    for x in pending:
        kind = type(x)
        if kind in PLAIN:
            try:
                key += (x.shape, x.dtype, x.device, x.layout)
            except RuntimeError:
                # A nested tensor has no shape; the check refuses it.
                return None
        elif kind in _SCALARS:
            # 1, 1.0 and True are equal, but a check distinguishes them.
            key += (kind, x)
        elif kind is MLSTMState or kind is SLSTMState:
            key += (kind,)
            # The loop continues with these.
            pending += x
        else:
            return None
    return tuple(key)
