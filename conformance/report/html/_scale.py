"""Logarithmic axes: the position of a value, and the values at which labels are written."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis from ``low`` to ``high``, drawn from ``start`` to ``end``.

    Values below it are drawn at its start, 0 at its own position, and values above it, including ∞ and NaN, at its end.
    Nothing is omitted, because a reader must see numbers that are off the scale.

    Attributes:
        beyond: whether anything is above it; the last label then says so.
    """

    low: float
    high: float
    start: float
    end: float
    zero: float
    beyond: bool = False

    def __call__(self, value: float) -> float:
        if math.isnan(value) or value >= self.high:
            return self.end
        if value <= 0:
            return self.zero
        if value <= self.low:
            return self.start
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, base: int = 10, most: int = 6) -> list[Tick]:
        """Powers of ``base`` on the axis, few enough that their labels do not overlap."""
        first = math.ceil(math.log(self.low, base) - 1e-9)
        last = math.floor(math.log(self.high, base) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / most))
        ticks = [Tick(self(float(base) ** power), _power(base, power)) for power in range(last, first - 1, -step)]
        if self.beyond:
            ticks[0] = Tick(ticks[0].at, f"≥ {ticks[0].label}")
        return ticks[::-1]


def scale(
    values: Iterable[float],
    floor: float,
    ceiling: float,
    start: float,
    end: float,
    *,
    zero: float | None = None,
    least: int = 1,
    base: int = 10,
) -> LogScale:
    """An axis that contains ``values``, between whole powers of ``base`` and limited by ``floor`` and ``ceiling``.

    Args:
        zero: the position of 0; None for the start.
        least: the least number of powers that it spans.
    """
    values = list(values)
    shown = [min(max(value, floor), ceiling) for value in values if value > 0] or [1.0]
    low = math.floor(math.log(min(shown), base) + 1e-9)
    high = max(math.ceil(math.log(max(shown), base) - 1e-9), low + least)
    beyond = any(math.isnan(value) or value > ceiling for value in values)
    return LogScale(float(base) ** low, float(base) ** high, start, end, start if zero is None else zero, beyond)


def _power(base: int, power: int) -> str:
    return f"{float(base) ** power:g}" if -2 <= power <= 3 or base == 2 else f"1e{power}"
