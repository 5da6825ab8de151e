"""The goals on a CPU, as data, and the verdict on each by the rows of a run: measured, met or not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.speed.cases import SHAPES
from benchmarks.speed.operations import DIRECTIONS, OPS, TIMED
from benchmarks.speed.timing import Timing, ratio

Rows = list[dict[str, Any]]
_ALIKE = ("op", "contender", "direction", "B", "N", "K", "V", "dtype")
_OF_GOALS = ("products alone", "torch loop")
_YARDSTICKS = (*_OF_GOALS, "reference")
TORCH, XLA = "torch_impl (torch)", "jax_impl (xla)"


@dataclass(frozen=True)
class Found:
    """A figure: the place where it was found and, if available, its bootstrap interval."""

    where: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Goal:
    """A figure to be reached.

    Attributes:
        text: the description of the figure.
        least, most: the bounds of its range; None means no bound.
        figures: returns the figures found in the rows and calls of a document.
    """

    text: str
    least: float | None
    most: float | None
    figures: Callable[[dict[str, Any]], Iterable[Found]]

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def judged(document: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per goal and place; a goal for which a run has no figure is omitted."""
    return [
        {
            "goal": goal.text,
            "where": found.where,
            "measured": found.value,
            "interval": None if found.interval is None else list(found.interval),
            "least": goal.least,
            "most": goal.most,
            "met": goal.met(found.value),
        }
        for goal in GOALS
        for found in goal.figures(document)
    ]


def _timed(rows: Rows, **fields: Any) -> Rows:
    return [
        row for row in rows if row["seconds"] is not None and all(row[name] == value for name, value in fields.items())
    ]


def _cases(rows: Rows, op: str, direction: str) -> list[str]:
    """The cases for which speeds are required: those of ``laptop``, and others in which a yardstick was measured."""
    laptop = {case.id for case in SHAPES["laptop"]}
    found = _timed(rows, op=op, direction=direction)
    required = (row for row in found if row["case"] in laptop or row["contender"].startswith(_OF_GOALS))
    return list(dict.fromkeys(row["case"] for row in required))


def _times(op: str, direction: str, ours: str, theirs: tuple[str, ...], inverse: bool = False) -> Callable:
    """The time of the fastest of ``theirs`` over that of ``ours``, case by case (inverse: ours over theirs)."""

    def figures(document: dict[str, Any]) -> Iterable[Found]:
        for case in _cases(document["rows"], op, direction):
            rows = _timed(document["rows"], case=case)
            own = [row for row in rows if row["contender"] == ours]
            others = [row for row in rows if row["contender"].startswith(theirs)]
            others.sort(key=lambda row: row["seconds"])
            if own and others:
                pair = Timing(tuple(own[0]["rounds"])), Timing(tuple(others[0]["rounds"]))
                value, low, high = ratio(*reversed(pair)) if inverse else ratio(*pair)
                yield Found(f"{case}, {others[0]['contender']}", value, (low, high))

    return figures


def _over(
    text: str, op: str, ours: str, theirs: tuple[str, ...], training: float = 1.5, forward: float = 1
) -> list[Goal]:
    """``forward`` times as fast as the fastest of ``theirs`` in the forward pass, and ``training`` times in both."""
    return [
        Goal(f"{text}, forward", forward, None, _times(op, "forward", ours, theirs)),
        Goal(f"{text}, forward + backward", training, None, _times(op, "both", ours, theirs)),
    ]


def _fastest(op: str, direction: str) -> Callable:
    """The time of the fastest peer over that of the faster of our implementations, case by case."""

    def figures(document: dict[str, Any]) -> Iterable[Found]:
        for case in _cases(document["rows"], op, direction):
            # Several parts of a run may measure one case; the first of them has the peers.
            first: dict[str, dict[str, Any]] = {}
            for row in _timed(document["rows"], case=case):
                first.setdefault(row["contender"], row)
            rows = sorted(first.values(), key=lambda row: row["seconds"])
            own = [row for row in rows if row["contender"] in (TORCH, XLA)]
            peers = [row for row in rows if not row["own"] and not row["contender"].startswith(_YARDSTICKS)]
            if own and peers:
                value, low, high = ratio(Timing(tuple(own[0]["rounds"])), Timing(tuple(peers[0]["rounds"])))
                yield Found(f"{case}, {peers[0]['contender']}", value, (low, high))

    return figures


def _compiling(document: dict[str, Any]) -> Iterable[Found]:
    for op in OPS:
        rows = [row for row in _timed(document["rows"], op=op, contender=XLA) if row["first_call_seconds"]]
        if rows:
            slowest = max(rows, key=lambda row: row["first_call_seconds"] - row["seconds"])
            yield Found(slowest["case"], slowest["first_call_seconds"] - slowest["seconds"])


def _fixed(framework: str) -> Callable:
    def figures(document: dict[str, Any]) -> Iterable[Found]:
        for row in document.get("calls", []):
            if row["framework"] == framework and row["reason"] is None:
                found = row["times_empty"]
                yield Found(f"{row['function']} {row['direction']}", found["ratio"], (found["low"], found["high"]))

    return figures


def _oracle(document: dict[str, Any]) -> Iterable[Found]:
    for row in _timed(document["rows"], contender="reference", S=1024):
        yield Found(row["case"], row["seconds"])


def _slope(quantity: str) -> Callable:
    """The slope of the logarithms over S from 512 up, for each of our functions."""

    def figures(document: dict[str, Any]) -> Iterable[Found]:
        rows = [row for row in document["rows"] if row["own"] and row["S"] >= 512 and row[quantity]]
        groups: dict[tuple[Any, ...], Rows] = {}
        for row in rows:
            groups.setdefault(tuple(row[name] for name in _ALIKE), []).append(row)
        for (op, contender, direction, *_), of in groups.items():
            if len({row["S"] for row in of}) > 3:
                S, y = (np.log([row[name] for row in of]) for name in ("S", quantity))
                span = f"S {min(row['S'] for row in of)} to {max(row['S'] for row in of)}"
                yield Found(f"{op} {direction}, {contender}, {span}", float(np.polyfit(S, y, 1)[0]))

    return figures


_PASSES = {"forward": "forward", "both": "forward + backward"}
_OVER_PEERS = {"slstm": (3, 3), "gru_reset_after": (1, 1)}
"""Required ratios to the fastest peer, forward and both passes, of the operations for which they are not 1 and 1.5."""
_MLSTM_KERNELS, _PRODUCTS = ("mlstm_kernels native",), (TORCH, ("products alone (torch)",))
GOALS = [
    *(
        Goal(f"{op} over the fastest peer, {_PASSES[direction]}", least, None, _fastest(op, direction))
        for op in OPS
        for direction, least in zip(DIRECTIONS, _OVER_PEERS.get(op, (1, 1.5)), strict=True)
        if direction in TIMED[op].directions
    ),
    *_over("torch mLSTM over mlstm_kernels' best", "mlstm", TORCH, _MLSTM_KERNELS, training=1.4),
    *(
        Goal(f"torch mLSTM in products alone, {name}", None, 3, _times("mlstm", direction, *_PRODUCTS, inverse=True))
        for direction, name in (("forward", "forward"), ("both", "forward + backward"))
    ),
    *_over("torch GRU over torch.nn.GRU", "gru", TORCH, ("torch.nn.GRU",)),
    *_over("slstm of torch_impl over the fastest peer", "slstm", TORCH, ("flashrnn", "xlstm"), 3, 3),
    *_over("gru_reset_after of torch_impl over torch.nn.GRU", "gru_reset_after", TORCH, ("torch.nn.GRU",), 1),
    Goal("torch GRU over a loop, forward + backward", 10, None, _times("gru", "both", TORCH, ("torch loop",))),
    *_over("JAX mLSTM over mlstm_kernels' JAX", "mlstm", XLA, ("mlstm_kernels JAX",)),
    *_over("JAX GRU over flax", "gru", XLA, ("flax",)),
    Goal("seconds until JAX has compiled a case, the slowest", None, 5, _compiling),
    Goal("torch: fixed cost of a call in empty calls", None, 1.5, _fixed("torch")),
    Goal("JAX: fixed cost of a call in jitted identities", None, 1.5, _fixed("jax")),
    Goal(
        "torch mlstm_step in its products",
        None,
        5,
        _times("mlstm_step", "forward", TORCH, ("products alone (torch)",), inverse=True),
    ),
    Goal(
        "JAX mlstm_step in its products",
        None,
        3,
        _times("mlstm_step", "forward", XLA, ("products alone (jax)",), inverse=True),
    ),
    Goal("seconds of reference.mlstm", None, 2, _oracle),
    Goal("slope of time over S", 0.9, 1.1, _slope("seconds")),
    Goal("slope of memory over S", 0.9, 1.1, _slope("peak_bytes")),
]
