"""Settings of the process that a target may change, and that the suite itself depends on."""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A setting: a function that reads it, and one that sets it."""


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put the settings of the process back at the end, as they were when the context was entered."""
    with kept(_SETTINGS):
        yield


@contextmanager
def kept(settings: tuple[Setting, ...]) -> Iterator[None]:
    """Put these settings back at the end: each that has another value then."""
    before = [read() for read, _ in settings]
    try:
        yield
    finally:
        for (read, write), value in zip(settings, before, strict=True):
            if read() != value:
                write(value)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]


def _folder() -> str | None:
    """The working directory; None if it was deleted."""
    with suppress(FileNotFoundError):
        return os.getcwd()


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(FileNotFoundError):
            os.chdir(folder)


_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGALRM", "SIGVTALRM", "SIGPROF")
_SIGNALS = [number for number in signal.Signals if number.name in _HANDLED]


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    """Set those that changed. Python can do this only in the main thread, and only if it set a handler itself."""
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            with suppress(ValueError, TypeError):
                signal.signal(number, handler)


def _running_timers() -> set[int]:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF) if hasattr(signal, "setitimer") else ()
    return {timer for timer in timers if signal.getitimer(timer)[0]}


def _stop_other_timers(running: set[int]) -> None:
    for timer in _running_timers() - running:
        signal.setitimer(timer, 0.0)


_SETTINGS: tuple[Setting, ...] = (
    # The first two come first because they are called with every function.
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (_running_timers, _stop_other_timers),
    (_handlers, _set_handlers),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()),
    (np.geterr, lambda handling: np.seterr(**handling)),
    (lambda: list(warnings.filters), _set_filters),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), partial(setattr, sys, "path")),
    (lambda: sys.stdout, partial(setattr, sys, "stdout")),
    (lambda: sys.stderr, partial(setattr, sys, "stderr")),
    (_folder, _set_folder),
)
