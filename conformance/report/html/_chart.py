"""The parts of a drawing. The template draws them in the colours of the style, so that they follow the theme."""

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.dtypes import FLOATING
from conformance.report.html._scale import Tick

SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
    "M-3.2 -3.2h6.4v6.4h-6.4Z",
    "M0 -4.4L4.2 3H-4.2Z",
    "M0 -4.6L4.6 0L0 4.6L-4.6 0Z",
)
"""A shape for each dtype: circle, square, triangle, diamond, because not everyone can tell colours apart."""


@dataclass(frozen=True)
class Marker:
    """One value with a tooltip.

    Attributes:
        series: the CSS class of its colour.
        shape: its outline around (0, 0).
        title: the text of its tooltip.
    """

    x: float
    y: float
    series: str
    shape: str
    title: str


@dataclass(frozen=True)
class Trace:
    """A path without a tooltip: a cloud of points, a histogram, a line."""

    kind: str
    series: str
    path: str


@dataclass(frozen=True)
class Label:
    x: float
    y: float
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Box:
    """The size of a drawing, and the positions of its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One drawing.

    Attributes:
        heading: the heading above it.
        title, text: its content in a few words and in a sentence, for readers who cannot see it.
        x, y: ticks, by position along the axis.
        above: whether the ticks of x are repeated at the top, for a drawing that is taller than a screen.
    """

    id: str
    heading: str
    title: str
    text: str
    box: Box
    x: list[Tick]
    y: list[Tick]
    traces: list[Trace]
    markers: list[Marker]
    labels: list[Label]
    above: bool = False


def series(dtype: str) -> str:
    """The CSS class of a dtype's colour."""
    return f"series-{FLOATING.index(dtype) if dtype in FLOATING else 0}"


def shape(dtype: str) -> str:
    return SHAPES[FLOATING.index(dtype) if dtype in FLOATING else 0]


def cloud(places: Iterable[tuple[float, float]]) -> str:
    """One dot at every position; points that round to the same pixel share a dot."""
    seen = dict.fromkeys((round(x), round(y)) for x, y in places)
    return "".join(f"M{x} {y}h0" for x, y in seen)


def line(places: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if at else 'M'}{x:g} {y:g}" for at, (x, y) in enumerate(places))
