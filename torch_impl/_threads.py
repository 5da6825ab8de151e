"""The number of threads of an operator on a CPU, chosen so that other processes on the same cores do not stop a call.

PyTorch, MKL and oneDNN divide the work of an operator among the threads of an OpenMP team, and the operator waits for
all of them. If another process uses the cores, the system may have put one of the threads aside, and each operator
waits for a time slice, about ten milliseconds, however small it is. A call here therefore uses

- one thread, if its work is small, as that of a loop whose steps wait for each other usually is;
- all threads otherwise, or, with ``GATESPEC_SHARED_CORES=1`` in the environment at import, one thread for a while after
  its own thread was kept from the cores for a quarter of the time.

The second rule must be asked for: where PyTorch divides an array among threads, the last bits of some elements depend
on their number, so that the same call may give other bits under another load. It never holds under
``torch.use_deterministic_algorithms(True)``. ``torch.set_num_threads`` would change the number for other threads of the
program too; OpenMP's and MKL's own functions change it for the thread that calls them.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from threading import local
from time import perf_counter, thread_time
from typing import NamedTuple

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None

ADAPTS = os.environ.get("GATESPEC_SHARED_CORES") == "1"
"""Whether large work may use one thread while other processes use the cores, which may change the last bits."""

_WINDOW = 0.005
"""Minimum number of seconds for which the share of the time on a core is measured."""

_OFF_CORE = 0.25
"""The share of a window that a thread spends off the cores from which other processes are taken to use them."""

_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Number of seconds for which calls then use one thread. It doubles, if they find the cores in use again after it."""


class _Setters(NamedTuple):
    """Functions that set the number of threads for the calling thread; that of MKL, which returns the number before,
    takes 0 for OpenMP's."""

    openmp: Callable[[int], int]
    mkl: Callable[[int], int] | None


@cache
def _setters() -> _Setters | None:
    """The functions of the libraries that PyTorch is linked with; None if it does not use OpenMP."""
    library = ctypes.PyDLL(torch._C.__file__)
    openmp, mkl = (getattr(library, name, None) for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"))
    if openmp is None:
        return None
    threads = torch.get_num_threads()
    openmp(threads + 1)
    follows = torch.get_num_threads() == threads + 1
    openmp(threads)
    return _Setters(openmp, mkl) if follows else None


class _State(local):
    """The innermost `threads` of the calling thread."""

    current: "threads | None" = None


_state = _State()


class _Pause:
    """The end of a pause, before which calls use one thread, and the length of the next one."""

    end = 0.0
    following = _PAUSE

    def begin(self, time: float) -> None:
        self.end, self.following = time + self.following, min(2 * self.following, _LONGEST_PAUSE)


_pause = _Pause()


class threads:
    """A context in which the operators of the calling thread use one thread or all of them.

    Args:
        device: where the operators run; the context does nothing unless that is a CPU.
        large: whether dividing the work among threads is worth waking them.
    """

    __slots__ = ("_adapts", "_all", "_alone", "_large", "_of_mkl", "_outer", "_setters", "_window")

    def __init__(self, device: torch.device, large: bool):
        self._all = torch.get_num_threads() if device.type == "cpu" else 1
        self._large = large
        self._adapts = large and ADAPTS and not torch.are_deterministic_algorithms_enabled()
        self._alone = False

    def __enter__(self) -> None:
        self._setters = _setters() if self._all > 1 else None
        self._outer, _state.current = _state.current, self
        if self._setters is not None:
            if self._large:
                self._window = _now()
                self.reconsider()
            else:
                self._set(alone=True)

    def __exit__(self, *_: object) -> None:
        self.reconsider()
        _state.current = self._outer
        if self._alone:
            self._set(alone=False)
        if self._outer is not None:
            self._outer.reconsider()

    def _set(self, alone: bool) -> None:
        assert self._setters is not None
        openmp, mkl = self._setters
        openmp(1 if alone else self._all)
        if mkl is not None:
            before = mkl(1 if alone else self._of_mkl)
            if alone:
                self._of_mkl = before
        self._alone = alone

    def reconsider(self) -> None:
        """Change to one thread, or back to all, if other processes have begun or ceased to use the cores."""
        if self._setters is None or not self._adapts:
            return
        time = perf_counter()
        if time < _pause.end:
            if not self._alone:
                self._set(alone=True)
        elif self._alone:
            self._set(alone=False)
            self._window = _now()
        elif time - self._window.time >= _WINDOW:
            before, self._window = self._window, _now()
            if _in_use(before, self._window):
                _pause.begin(self._window.time)
                self._set(alone=True)
            else:
                _pause.following = _PAUSE


def reconsider_threads() -> None:
    """Between two pieces of work: `threads.reconsider` of the innermost context, if there is one."""
    if _state.current is not None:
        _state.current.reconsider()


class _Moment(NamedTuple):
    """Seconds that have passed, seconds that this thread was on a core, and involuntary switches of this process; where
    the system does not count them, time."""

    time: float
    on_core: float
    switches: float


def _now() -> _Moment:
    time = perf_counter()
    switches = time if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return _Moment(time, thread_time(), switches)


def _in_use(before: _Moment, now: _Moment) -> bool:
    """Whether other processes used the cores on which this thread would have run."""
    passed, on_core = now.time - before.time, now.on_core - before.on_core
    # A thread that waits for a lock, and not for a core, is not switched involuntarily.
    return passed - on_core > _OFF_CORE * passed and now.switches != before.switches
