"""Settings of the process that a target may change, and that the suite itself depends on."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put the settings back at the end: warning filters, NumPy's error handling, recursion limit, working directory."""
    filters, limit, folder = list(warnings.filters), sys.getrecursionlimit(), os.getcwd()
    try:
        with np.errstate():
            yield
    finally:
        if warnings.filters != filters:
            # Only if they changed: Python then forgets which warnings it has shown.
            warnings.resetwarnings()
            warnings.filters = filters
        if sys.getrecursionlimit() != limit:
            sys.setrecursionlimit(limit)
        os.chdir(folder)
