"""The differences between compiled and interpreted kernels, and whether either kind can run in this process.

This module does not import Triton, because the rows import it in processes that may never launch a kernel.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec

import numpy as np

from reference.backends import Request

DTYPES = ("float32", "float16", "bfloat16")
"""The dtypes that kernels accept; float64 is computed by the composed backend."""


def _installed() -> bool:
    try:
        return find_spec("triton") is not None
    except ImportError:
        return False


# This is not a cached function, because torch.compile traces the rows too and cannot trace into one.
_INSTALLED = _installed()


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter, which reads the same variable when a kernel is defined.

    Under the interpreter, products of bfloat16 operands are wrong by orders of magnitude. Kernels therefore read this
    as a constexpr and widen the operands of `tl.dot` first.
    """
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def quiet_numerics() -> AbstractContextManager:
    """Context of a launch that silences warnings about ±∞, NaN and masked values, which only the interpreter gives."""
    return _quiet() if interpreted() else nullcontext()


@contextmanager
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        yield


def unavailable(request: Request) -> str | None:
    """The reason why no Triton kernel can run on the request's device in this process; None if one can."""
    if not _INSTALLED:
        return "Triton is not installed; `pip install triton` adds it"
    if request.device == "cpu" and not interpreted():
        return (
            "on the CPU a Triton kernel runs only under its interpreter: set TRITON_INTERPRET=1 before the first call"
        )
    return None
