"""Settings of the process that a target may change, and that the suite itself depends on."""

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A setting: a function that reads it, and one that sets it."""


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put the settings of the process back at the end, as they were when the context was entered."""
    filters, folder = list(warnings.filters), _folder()
    with ExitStack() as stack:
        stack.enter_context(kept(_SETTINGS))
        stack.enter_context(_signals_kept())
        try:
            with np.errstate():
                yield
        finally:
            if warnings.filters != filters:
                # Only if they changed: Python then forgets which warnings it has shown.
                warnings.resetwarnings()
                warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]
            if folder is not None and _folder() != folder:
                with suppress(FileNotFoundError):
                    os.chdir(folder)


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


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Put handlers of signals back, and stop the timers that were started; another thread can change no handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    running = [timer for timer in _TIMERS if signal.getitimer(timer)[0]]
    try:
        yield
    finally:
        for timer in _TIMERS:
            if timer not in running:
                signal.setitimer(timer, 0.0)
        for number, handler in handlers.items():
            # A handler of None was not set from Python, which cannot set it again.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _found(*names: str) -> tuple[Any, ...]:
    """Constants of the module ``signal``, without those that this system lacks."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


_SIGNALS = _found("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGALRM", "SIGVTALRM", "SIGPROF")
_TIMERS = _found("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")


def _folder() -> str | None:
    """The working directory; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _set_collection(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()


def _set_environment(variables: dict[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


def _set_streams(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams


_SETTINGS: tuple[Setting, ...] = (
    # The first two come first because they are called with every function.
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _set_collection),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), _set_path),
    (lambda: (sys.stdout, sys.stderr), _set_streams),
)
