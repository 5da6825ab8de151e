"""Pictures of results: time and memory against a size, and ratios at fixed shapes (needs matplotlib)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.speed.operations import shown_sizes

Rows = Sequence[dict[str, Any]]
AXES = {"S": "steps S", "B": "sequences B", "K": "head dim"}
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#000000", "#999999", "#882255", "#999933", "#332288", "#f0e442"),
)
MARKERS = "osD^vPX*<>hp"


def draw(path: Path, rows: Rows) -> None:
    """One figure of ``rows``: a curve if an operation has three or more sizes, otherwise bars."""
    panels = _panels([row for row in rows if row["seconds"] is not None])
    if not panels:
        raise ValueError("there is nothing to draw: no row has a time")
    figure, axes = plt.subplots(len(panels), 1, figsize=(7, 3.2 * len(panels)), squeeze=False, layout="constrained")
    for axis, (kind, quantity, title, panel) in zip(axes[:, 0], panels, strict=True):
        _bars(axis, panel) if kind == "bars" else curves(axis, panel, kind, quantity)
        axis.set_title(title, loc="left", fontsize=10)
    save(figure, path)


def draw_ratios(path: Path, rows: Rows, title: str) -> None:
    """Bars for every case: the times of all contenders over our fastest."""
    timed = [row for row in rows if row["seconds"] is not None]
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.13 * len(timed)), layout="constrained")
    _bars(axis, timed)
    axis.set_title(title, loc="left", fontsize=9)
    save(figure, path)


def draw_lengths(path: Path, rows: Rows, title: str) -> None:
    """Time and memory of our own functions against S, one operation per row."""
    groups = [(op, [row for row in rows if row["op"] == op]) for op in dict.fromkeys(row["op"] for row in rows)]
    groups = [(op, dict(varying(of)).get("S", [])) for op, of in groups]
    groups = [(op, group) for op, group in groups if group]
    figure, axes = plt.subplots(len(groups), 2, figsize=(9, 3 * len(groups)), squeeze=False, layout="constrained")
    for line, (op, group) in zip(axes, groups, strict=True):
        for axis, quantity in zip(line, ("seconds", "peak_bytes"), strict=True):
            curves(axis, [row for row in group if row[quantity]], "S", quantity)
            axis.set_title(f"{op}, {_sizes(group[0], 'S')}", loc="left", fontsize=9)
    figure.suptitle(title, fontsize=9)
    save(figure, path)


plt.rcParams["svg.hashsalt"] = "gatespec"


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # There is no date, so that the same results give the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _sizes(row: dict[str, Any], but: str) -> str:
    passes = "forward" if row["direction"] == "forward" else "forward + backward"
    return f"{shown_sizes(row, but)} {row['dtype']} {passes}"


def _panels(rows: Rows) -> list[tuple[str, str, str, Rows]]:
    panels = []
    for op in dict.fromkeys(row["op"] for row in rows):
        for direction in dict.fromkeys(row["direction"] for row in rows):
            of = [row for row in rows if row["op"] == op and row["direction"] == direction]
            varied = varying(of)
            for name, group in varied:
                panels.append((name, "seconds", f"{op}, {direction}: time", group))
                measured = [row for row in group if row["peak_bytes"]]
                if measured:
                    panels.append((name, "peak_bytes", f"{op}, {direction}: memory", measured))
            alone = [row for row in of if not any(row in group for _, group in varied)]
            if alone:
                panels.append(("bars", "seconds", f"{op}, {direction}: time over our fastest", alone))
    return panels


def varying(rows: Rows) -> list[tuple[str, Rows]]:
    """Groups in which one size takes three or more values while all other sizes are fixed."""
    found = []
    for name in AXES:
        others = [size for size in ("B", "S", "N", "K", "V", "dtype") if size != name and (name, size) != ("K", "V")]
        keys = dict.fromkeys(tuple(row[other] for other in others) for row in rows)
        for key in keys:
            group = [row for row in rows if tuple(row[other] for other in others) == key]
            if len({row[name] for row in group}) >= 3:
                found.append((name, group))
    return found


def curves(axis: Axes, rows: Rows, size: str, quantity: str) -> None:
    """Plot ``quantity`` against a size on logarithmic axes, one line per contender; for times, the floor below."""
    for number, name in enumerate(dict.fromkeys(row["contender"] for row in rows)):
        points = sorted((row[size], row[quantity]) for row in rows if row["contender"] == name and row[quantity])
        if points:
            x, y = np.array(points).T
            slope = np.polyfit(np.log(x), np.log(y), 1)[0] if len(x) > 2 else np.nan
            style = {"color": COLOURS[number % 12], "marker": MARKERS[number % 12], "markersize": 4, "linewidth": 1.4}
            axis.loglog(x, y, label=f"{name} (slope {slope:.2f})", **style)
    if quantity == "seconds":
        x, y = np.array(sorted({(row[size], row["floor_seconds"]) for row in rows})).T
        axis.loglog(x, y, color="0.5", linestyle=":", label="floor of this machine")
    axis.set_xlabel(AXES[size])
    axis.set_ylabel({"seconds": "seconds", "peak_bytes": "bytes at the peak"}[quantity])
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend(fontsize=7)


def _bars(axis: Axes, rows: Rows) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["contender"] for row in rows))
    present = {case: [name for name in names if any(_is_bar(row, case, name) for row in rows)] for case in cases}
    height = 0.85 / max(len(shown) for shown in present.values())
    for number, name in enumerate(names):
        of = {row["case"]: row for row in rows if _is_bar(row, row["case"], name)}
        if of:
            middle = [cases.index(case) - height * (len(present[case]) - 1) / 2 for case in of]
            at = [place + height * present[case].index(name) for place, case in zip(middle, of, strict=True)]
            bars = [row["times_ours"] for row in of.values()]
            errors = [[bar["ratio"] - bar["low"] for bar in bars], [bar["high"] - bar["ratio"] for bar in bars]]
            axis.barh(
                at,
                [bar["ratio"] for bar in bars],
                height,
                xerr=np.maximum(errors, 0),
                label=name,
                color=COLOURS[number % 12],
                error_kw={"linewidth": 0.8},
            )
    axis.axvline(1, color="0.3", linewidth=0.8)
    axis.set_yticks(range(len(cases)), cases, fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("times our time (right of 1: slower than ours)")
    if axis.containers:
        axis.legend(fontsize=7)


def _is_bar(row: dict[str, Any], case: str, name: str) -> bool:
    return row["case"] == case and row["contender"] == name and bool(row["times_ours"])
