"""The measurement of one case: the contenders, whether each conforms, its time, and the floor of the machine."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.speed.conforming import Conformity, examined, smaller
from benchmarks.speed.contenders import Contender, UnavailableError
from benchmarks.speed.operations import Case
from benchmarks.speed.rows.all_rows import contenders
from benchmarks.speed.timing import Run, Timing, interleaved, measured, ratio

ROUNDS = 15


@dataclass
class Entry:
    """One contender in one case.

    Attributes:
        reason: why it has no time; None if it has one.
        choice: the fastest setting.
        ratio: its time over that of our fastest, with the bounds of its bootstrap interval.
        fraction: the fraction of the floor that it reaches.
        first_call: seconds of the first call, including compilation.
        peak_bytes: memory in addition to its inputs.
    """

    contender: Contender
    reason: str | None = None
    conformity: Conformity | None = None
    choice: Any = None
    timing: Timing | None = None
    ratio: tuple[float, float, float] | None = None
    fraction: float | None = None
    first_call: float | None = None
    peak_bytes: int | None = None


@dataclass
class Measurement:
    """One case with all its contenders.

    Attributes:
        flop_rate, byte_rate: measured ceilings, the best among the frameworks that take part.
        floor: the least number of seconds that the case needs at these rates.
    """

    case: Case
    entries: list[Entry] = field(default_factory=list)
    flop_rate: float = 0.0
    byte_rate: float = 0.0

    @property
    def floor(self) -> float:
        if not self.flop_rate:
            return 0.0
        return max(self.case.flop / self.flop_rate, self.case.bytes / self.byte_rate)


class Bench:
    """Measures cases on one device.

    Args:
        device: ``cpu`` or ``cuda``.
        peers: names of peers and yardsticks (`benchmarks.speed.rows`).
        rounds: number of rounds of interleaved timing.
        backends: our own backends to measure; all if empty.
        memory: whether the peak memory is measured on a CPU as well.
    """

    def __init__(
        self,
        device: str,
        peers: tuple[str, ...],
        rounds: int = ROUNDS,
        backends: tuple[str, ...] = (),
        memory: bool = False,
    ):
        self.memory = memory
        self.device = device
        self.peers = peers
        self.rounds = rounds
        self.backends = backends
        self._drawn: tuple[Case | None, Any, dict[tuple[str, bool], Any]] = (None, {}, {})
        self._drivers: dict[tuple[str, str], Any] = {}

    def driver(self, framework: str, dtype: str) -> Any:
        key = (framework, dtype)
        if key not in self._drivers:
            try:
                module = importlib.import_module(f"benchmarks.speed.drivers.{framework}")
                self._drivers[key] = getattr(module, f"{framework.capitalize()}Driver")(self.device, dtype)
            except (ImportError, RuntimeError) as error:
                raise UnavailableError(f"{framework} does not run on {self.device} here: {error}") from error
        return self._drivers[key]

    def versions(self) -> dict[str, str]:
        return {name: text for driver in self._drivers.values() for name, text in driver.versions().items()}

    def measure(self, case: Case) -> Measurement:
        """Judge and time every contender of a case."""
        result = Measurement(case)
        runs: dict[str, Run] = {}
        for contender in contenders(case.op, self.peers):
            if contender.own and self.backends and not any(f"({name})" in contender.name for name in self.backends):
                continue
            entry = Entry(contender, contender.why_not(case, self.device))
            result.entries.append(entry)
            if entry.reason is None:
                try:
                    runs[contender.name] = self._prepared(entry, case)
                except UnavailableError as error:
                    entry.reason = str(error)
                except Exception as error:
                    entry.reason = f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if runs:
            self._time(result, runs)
        return result

    def _prepared(self, entry: Entry, case: Case) -> Run:
        contender = entry.contender
        driver = self.driver(contender.framework, case.dtype)
        small = smaller(case)
        choices = list(self._choices(contender, small))
        entry.conformity = examined(contender, small, choices[0][1], driver)
        declared = contender.differs is not None and case.direction in contender.differs[1]
        if entry.conformity.verdict == "wrong" and not declared:
            found = entry.conformity
            raise UnavailableError(
                f"wrong: {found.where} is off by {found.worst:.3g} tolerances, {found.relative:.2g} of its size"
            )
        natives = self._natives(case, contender, driver)
        clock, best = driver.clock(), None
        for choice, function in self._choices(contender, case):
            run = (driver.forward if case.direction == "forward" else driver.both)(function, natives)
            first = driver.warm(run)
            seconds = min(clock(run, 1) for _ in range(3)) if len(contender.choices) > 1 else 0.0
            if best is None or seconds < best[0]:
                best, entry.choice, entry.first_call = (seconds, run), choice, first
        assert best is not None  # `_choices` raises if no setting serves the case.
        if self.memory or self.device != "cpu":
            entry.peak_bytes = driver.peak_bytes(best[1])
        return best[1]

    def _natives(self, case: Case, contender: Contender, driver: Any) -> Any:
        """The inputs of a case, drawn once and shared by all contenders that take them in the same layout."""
        if self._drawn[0] != case:
            self._drawn = (case, case.arrays(), {})
        _, arrays, laid = self._drawn
        key = contender.framework, contender.head_first
        if key not in laid:
            laid[key] = driver.natives(contender.transposed(arrays))
        return laid[key]

    def _choices(self, contender: Contender, case: Case) -> Iterator[tuple[Any, Any]]:
        """The contender's function under each of its settings that serves the case.

        Raises:
            UnavailableError: none does, with the reason of the last.
        """
        served, refused = False, UnavailableError("it has no settings")
        for choice in contender.choices:
            try:
                function = contender.load(case, choice)
            except UnavailableError as error:
                refused = error
                continue
            served = True
            yield choice, function
        if not served:
            raise refused

    def _time(self, result: Measurement, runs: dict[str, Run]) -> None:
        case = result.case
        ours = [entry for entry in result.entries if entry.contender.own and entry.contender.name in runs]
        frameworks = dict.fromkeys(
            entry.contender.framework for entry in result.entries if entry.contender.name in runs
        )
        rates = [self.driver(framework, case.dtype).rates(case.dtype) for framework in frameworks]
        result.flop_rate, result.byte_rate = (max(each) for each in zip(*rates, strict=True))
        driver = self.driver(next(iter(frameworks)), case.dtype)
        timings = measured(list(interleaved(runs, self.rounds, driver.clock())))
        for entry in result.entries:
            entry.timing = timings.get(entry.contender.name)
        best = min((entry.timing for entry in ours if entry.timing), key=lambda timing: timing.median, default=None)
        for entry in result.entries:
            if entry.timing is not None:
                entry.fraction = result.floor / entry.timing.median
                if best is not None:
                    entry.ratio = ratio(best, entry.timing)


def use_best_rates(measurements: list[Measurement]) -> None:
    """Give all measurements of a dtype the best rates of any of them; other programs can disturb a single one."""
    for dtype in {each.case.dtype for each in measurements}:
        of_dtype = [each for each in measurements if each.case.dtype == dtype]
        flop_rate, byte_rate = max(each.flop_rate for each in of_dtype), max(each.byte_rate for each in of_dtype)
        for each in of_dtype:
            each.flop_rate, each.byte_rate = flop_rate, byte_rate
            for entry in each.entries:
                if entry.timing is not None:
                    entry.fraction = each.floor / entry.timing.median
