"""Interleaved timing: every round times every contender once, so that a slow minute of the machine slows them all."""

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_SECONDS = 0.02
"""A round times so many calls of a contender that they take about this long."""

LONG_SECONDS = 0.5
"""Seconds of a call from which what ran before it makes no difference."""

CASE_SECONDS, LEAST_ROUNDS = 150.0, 3
"""Rounds of a case end after about so many seconds, but there are at least so many of them."""

SHORTEST = 1e-6
"""Seconds that a call counts at least: a clock of a device may read 0 for a call that launches nothing."""

TRIAL_CALLS, TRIAL_SECONDS = 20, 0.2
"""Calls that are made to find that number: at most so many, and none more after so many seconds."""

RESAMPLES = 2000

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt`` (``malloc.h``)."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds per call, with one number per round.

    Attributes:
        rounds: the measurements, in the order in which they were made.
    """

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Half of the interquartile range, over the median."""
        low, high = np.quantile(self.rounds, (0.25, 0.75))
        return float((high - low) / 2 / self.median)


def fastest_call(run: Run, clock: Callable[[Run, int], float]) -> float:
    """Seconds of the fastest of several single calls.

    The first calls after another contender's may take a hundred times as long as the later ones, until the other
    library's threads sleep and its own are awake.
    """
    fastest, spent = math.inf, 0.0
    for _ in range(TRIAL_CALLS):
        seconds = clock(run, 1)
        fastest, spent = min(fastest, seconds), spent + seconds
        if spent > TRIAL_SECONDS:
            break
    return max(fastest, SHORTEST)


def calls_per_round(seconds: float) -> int:
    """Number of calls of ``seconds`` each that make a round long enough for the clock."""
    return max(1, round(LEAST_SECONDS / seconds))


def interleaved(runs: dict[str, Run], rounds: int, clock: Callable[[Run, int], float]) -> Iterator[dict[str, float]]:
    """Time each of ``runs`` once per round, in an order that rotates by one position per round.

    A short call that is not timed comes before those that are. Without it, most contenders would always be timed with
    the caches, and with threads that still wait for work, of the same other one: of the one before it. After a long
    call its memory, which may be all that there is, is given back.

    Args:
        runs: by name; each makes one call and leaves no pending work that the clock would not wait for.
        rounds: number of rounds; fewer if they would take longer than `CASE_SECONDS`.
        clock: returns the seconds that ``count`` calls take.
    """
    names, seconds = list(runs), {}
    for name, run in runs.items():
        seconds[name] = fastest_call(run, clock)
        _give_back_memory_of(seconds[name])
    counts = {name: calls_per_round(each) for name, each in seconds.items()}
    affordable = CASE_SECONDS / max(sum(seconds.values()), SHORTEST)
    for number in range(min(rounds, max(LEAST_ROUNDS, int(affordable)))):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            if seconds[name] < LONG_SECONDS:
                clock(runs[name], 1)
            seconds[name] = clock(runs[name], counts[name]) / counts[name]
            _give_back_memory_of(seconds[name])
        yield dict(seconds)


def measured(rounds: list[dict[str, float]]) -> dict[str, Timing]:
    return {name: Timing(tuple(each[name] for each in rounds)) for name in rounds[0]}


def ratio(ours: Timing, theirs: Timing) -> tuple[float, float, float]:
    """The time of ``theirs`` over ours: the ratio of medians, and its 95 % bootstrap interval over rounds."""
    low, high = resampled([ours, theirs], lambda medians: medians[1] / medians[0])
    return theirs.median / ours.median, low, high


def resampled(
    timings: list[Timing], quantity: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a quantity computed from medians, one row for each of ``timings``.

    A round is resampled as a whole, because what slowed one contender in it also slowed the others.
    """
    seconds = np.array([timing.rounds for timing in timings])
    picks = np.random.default_rng(seed).integers(0, seconds.shape[1], (RESAMPLES, seconds.shape[1]))
    low, high = np.quantile(quantity(np.median(seconds[:, picks], axis=-1)), (0.025, 0.975))
    return float(low), float(high)


def wall_clock(run: Run, count: int) -> float:
    """Seconds for ``count`` calls that return only when their work is done."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start


def cuda_clock() -> Callable[[Run, int], float]:
    """A clock that uses the device's own events and empties the second-level cache before every call."""
    import torch

    cache = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")

    def clock(run: Run, count: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(count)]
        for start, end in events:
            cache.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return sum(start.elapsed_time(end) for start, end in events) / 1e3

    return clock


def keep_freed_memory() -> bool:
    """Make the C allocator keep freed memory of any size for the next call, as a training run's own pool would.

    glibc gives a block of 32 MiB or more back to the system when it is freed, and smaller ones now and then. The next
    call then waits for the system to hand it zeroed pages again: about 10 ms for 56 MB, depending on what ran before.
    This setting holds for the whole process, and so for all contenders alike.

    Returns:
        Whether the allocator has these settings; one that is not glibc's is left as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def give_back_memory() -> None:
    """Return freed memory to the system, where the C library is glibc."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _give_back_memory_of(seconds: float) -> None:
    if seconds > LONG_SECONDS:
        give_back_memory()
