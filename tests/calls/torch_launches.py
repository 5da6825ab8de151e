"""The Triton kernels that were launched, compiled or interpreted."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

# The methods through which Triton starts a kernel: module, class and method.
_STARTS = (
    ("triton.runtime.jit", "JITFunction", "run"),
    ("triton.runtime.interpreter", "GridExecutor", "__call__"),
    ("triton.compiler.compiler", "CompiledKernel", "__getitem__"),
)


@contextmanager
def launches() -> Iterator[list[str]]:
    """The names of the kernels that are launched inside this context, in order."""
    seen: list[str] = []
    with ExitStack() as stack:
        if importlib.util.find_spec("triton") is not None:
            for module, owner, method in _STARTS:
                _watch(stack, getattr(importlib.import_module(module), owner), method, seen)
        yield seen


def _watch(stack: ExitStack, owner: type, method: str, seen: list[str]) -> None:
    start = getattr(owner, method)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):
            function = getattr(self, "fn", self)
            seen.append(getattr(function, "__name__", None) or getattr(self, "name", owner.__name__))
        return start(self, *args, **kwargs)

    stack.enter_context(patch.object(owner, method, watched))
