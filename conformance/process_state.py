"""Settings of the process that a target may change, and that the suite itself depends on."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put the settings back at the end: warning filters, NumPy's error handling, recursion limit, working directory."""
    filters, limit, folder = list(warnings.filters), sys.getrecursionlimit(), _folder()
    try:
        with np.errstate():
            yield
    finally:
        if warnings.filters != filters:
            # Only if they changed: Python then forgets which warnings it has shown.
            warnings.resetwarnings()
            warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]
        if sys.getrecursionlimit() != limit:
            sys.setrecursionlimit(limit)
        if folder is not None and _folder() != folder:
            with suppress(FileNotFoundError):
                os.chdir(folder)


def _folder() -> str | None:
    """The working directory; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
