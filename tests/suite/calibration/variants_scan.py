"""Reverse cumulative sums, and sums forwards for their gradients, in the orders in which kernels add."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.base.dtypes import accumulation
from conformance.operations import Operation
from tests.suite.calibration.arithmetic import two_sum

Scan = Callable[[np.ndarray], np.ndarray]
Values = dict[str, np.ndarray]


def sequential(x: np.ndarray) -> np.ndarray:
    """A running sum."""
    y = x.copy()
    for t in range(1, x.shape[-1]):
        y[..., t] = y[..., t - 1] + x[..., t]
    return y


def compensated(x: np.ndarray) -> np.ndarray:
    """A running sum that carries its roundings along (Neumaier)."""
    y = x.copy()
    if not x.shape[-1]:
        return y
    total, lost = x[..., 0], np.zeros_like(x[..., 0])
    for t in range(1, x.shape[-1]):
        total, error = two_sum(total, x[..., t])
        lost = lost + error
        y[..., t] = total + lost
    return y


def doubling(x: np.ndarray) -> np.ndarray:
    """Hillis and Steele's: each pass adds what stands twice as far away."""
    y, shift = x, 1
    while shift < x.shape[-1]:
        y = np.concatenate([y[..., :shift], y[..., shift:] + y[..., :-shift]], axis=-1)
        shift *= 2
    return y.copy()


def tree(x: np.ndarray) -> np.ndarray:
    """Blelloch's: sums of pairs, their scan, and the elements between filled in."""
    S = x.shape[-1]
    if S < 2:
        return x.copy()
    pairs = tree(x[..., : S // 2 * 2 : 2] + x[..., 1::2])
    y = x.copy()
    y[..., 1::2] = pairs
    y[..., 2::2] = pairs[..., : (S - 1) // 2] + x[..., 2::2]
    return y


def chunkwise(L: int) -> Scan:
    """Running sums inside chunks of L, then of what the chunks before hold."""

    def scan(x: np.ndarray) -> np.ndarray:
        parts, carried = [], np.zeros((*x.shape[:-1], 1), x.dtype)
        for start in range(0, x.shape[-1], L):
            parts.append(sequential(x[..., start : start + L]) + carried)
            carried = parts[-1][..., -1:]
        return np.concatenate([x[..., :0], *parts], axis=-1)

    return scan


def block_totals(L: int) -> Scan:
    """Chunks of L summed pairwise, their totals scanned apart and added last, as two launches of a kernel do."""

    def scan(x: np.ndarray) -> np.ndarray:
        chunks = [doubling(x[..., start : start + L]) for start in range(0, x.shape[-1], L)]
        if not chunks:
            return x.copy()
        totals = tree(np.stack([chunk[..., -1] for chunk in chunks], axis=-1))
        later = [chunk + totals[..., b : b + 1] for b, chunk in enumerate(chunks[1:])]
        return np.concatenate([chunks[0], *later], axis=-1)

    return scan


def triangular(x: np.ndarray) -> np.ndarray:
    """A product with a triangle of ones, as a matrix unit takes it."""
    S = x.shape[-1]
    return np.matmul(x, np.triu(np.ones((S, S), x.dtype)))


def reversed_(scan: Scan, x: np.ndarray) -> np.ndarray:
    return scan(x[..., ::-1])[..., ::-1]


def _without_last(y: np.ndarray) -> np.ndarray:
    return np.concatenate([y[..., 1:], np.zeros_like(y[..., :1])], axis=-1)


def _without_first(y: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(y[..., :1]), y[..., :-1]], axis=-1)


@dataclass(frozen=True)
class Form:
    """The order in which a scan and its gradient add."""

    scan: Scan

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        kind = accumulation(dtype)
        y, dx = reversed_(self.scan, arrays["x"].astype(kind)), self.scan(cotangents["y"].astype(kind))
        off = record.name == "rev_cumsum_off"
        return {"y": _without_last(y) if off else y}, {"x": _without_first(dx) if off else dx}


FORMS: Mapping[str, Form] = {
    "sequential": Form(sequential),
    "compensated": Form(compensated),
    "doubling": Form(doubling),
    "pairwise tree": Form(tree),
    "chunkwise, L = 16": Form(chunkwise(16)),
    "chunkwise, L = 100": Form(chunkwise(100)),
    "chunk totals, L = 7": Form(block_totals(7)),
    "chunk totals, L = 64": Form(block_totals(64)),
    "parallel, a triangle of ones": Form(triangular),
}
