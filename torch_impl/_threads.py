"""The threads of an operator on a CPU, so that other processes on the same cores do not stop a call.

PyTorch, MKL and oneDNN divide the work of an operator among the threads of an OpenMP team, and the operator waits for
all of them. If another process uses the cores, the system may have put one of the threads aside. The others then wait
in a loop for about three milliseconds, which uses up the time on a core that the one needs, at each operator, however
small it is. A call here therefore

- uses one thread, if its work is small, as that of a loop whose steps wait for each other usually is;
- otherwise uses all threads, which wait asleep for a while after the calling thread was kept from the cores for a
  quarter of the time. No bit of a result depends on how a thread waits.

``torch.set_num_threads`` would change the number for other threads of the program too; OpenMP's and MKL's own functions
change it for the thread that calls them. GNU's OpenMP library, which PyTorch has on Linux, waits asleep while it has
more threads than there are cores (GOMP_SPINCOUNT in its manual); with other libraries threads wait as those do.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from threading import Event, Thread, local
from time import perf_counter, sleep, thread_time
from typing import Any, NamedTuple

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None

_WINDOW = 0.005
"""Minimum number of seconds for which the share of the time on a core is measured."""

_OFF_CORE = 0.25
"""The share of a window that a thread spends off the cores from which other processes are taken to use them."""

_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Number of seconds for which threads then wait asleep. It doubles if the cores are found in use again after it."""


class _Functions(NamedTuple):
    """Functions of the libraries that PyTorch is linked with.

    Attributes:
        openmp, mkl: set the number of threads for the calling thread; that of MKL, which returns the number before,
            takes 0 for OpenMP's.
        parallel: of GNU's OpenMP library, calls a function with an argument on so many threads.
    """

    openmp: Callable[[int], int]
    mkl: Callable[[int], int] | None
    parallel: Callable[[Any, Any, int, int], None] | None


@cache
def _functions() -> _Functions | None:
    """None if PyTorch does not use OpenMP."""
    library = ctypes.PyDLL(torch._C.__file__)
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local", "GOMP_parallel", "kmp_set_blocktime")
    openmp, mkl, parallel, of_another_library = (getattr(library, name, None) for name in names)
    if openmp is None:
        return None
    threads = torch.get_num_threads()
    openmp(threads + 1)
    follows = torch.get_num_threads() == threads + 1
    openmp(threads)
    return _Functions(openmp, mkl, None if of_another_library else parallel) if follows else None


class _State(local):
    """The innermost `threads` of the calling thread."""

    current: "threads | None" = None


_state = _State()


class _Pause:
    """The end of a pause, in which threads wait asleep, and the length of the next one."""

    end = 0.0
    following = _PAUSE

    def begin(self, time: float) -> None:
        length, self.following = self.following, min(2 * self.following, _LONGEST_PAUSE)
        self.end = time + length
        with suppress(RuntimeError):  # The system allows no more threads, or the interpreter is shutting down.
            Thread(target=_crowd, args=(length,), daemon=True).start()


def _crowd(seconds: float) -> None:
    """For so long, be the owner of enough idle threads of OpenMP that the process has more of them than cores."""
    functions = _functions()
    assert functions is not None and functions.parallel is not None
    more = max(1, (os.cpu_count() or 1) - torch.get_num_threads() + 1)
    # Where the system allows no more threads, Python raises; OpenMP would end the process.
    trial, end = [], Event()
    try:
        for _ in range(more):
            trial.append(Thread(target=end.wait, daemon=True))
            trial[-1].start()
    except RuntimeError:
        return
    finally:
        end.set()
    for thread in trial:
        thread.join()
    # Every thread of the team calls free(NULL), which does nothing. The team is this thread's, and ends with it.
    functions.parallel(ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p), None, 1 + more, 0)
    sleep(seconds)


_pause = _Pause()


class threads:
    """A context in which the operators of the calling thread use one thread or all of them.

    Args:
        device: where the operators run; the context does nothing unless that is a CPU.
        large: whether dividing the work among threads is worth waking them.
    """

    __slots__ = ("_all", "_functions", "_large", "_of_mkl", "_outer", "_window")

    def __init__(self, device: torch.device, large: bool):
        self._all = torch.get_num_threads() if device.type == "cpu" else 1
        self._large = large

    def __enter__(self) -> None:
        self._functions = _functions() if self._all > 1 else None
        self._outer, _state.current = _state.current, self
        if self._functions is None:
            return
        if self._large:
            self._window = _now()
        else:
            self._functions.openmp(1)
            if self._functions.mkl is not None:
                self._of_mkl = self._functions.mkl(1)

    def __exit__(self, *_: object) -> None:
        self.reconsider()
        _state.current = self._outer
        if self._functions is not None and not self._large:
            self._functions.openmp(self._all)
            if self._functions.mkl is not None:
                self._functions.mkl(self._of_mkl)

    def reconsider(self) -> None:
        """Begin a pause if other processes have begun to use the cores."""
        if not self._large or self._functions is None or self._functions.parallel is None:
            return
        time = perf_counter()
        if time - self._window.time < _WINDOW or time < _pause.end:
            return
        before, self._window = self._window, _now()
        if before.time < _pause.end:
            return
        if _in_use(before, self._window):
            _pause.begin(self._window.time)
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
