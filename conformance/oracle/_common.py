"""Helpers shared by the oracles of all operations, and the branch that each element of an mLSTM takes.

A gradient law tests only the branches that its data reach, so they are counted."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.base.dtypes import Array
from conformance.tolerance.budget import Expected

Values = dict[str, np.ndarray]

_computed: OrderedDict[Hashable, Expected] = OrderedDict()


def remember(key: Hashable, make: Callable[[], Expected], most: int = 256) -> Expected:
    """``make()``, computed once per key, because value and gradient laws and several targets draw the same cases."""
    if key in _computed:
        _computed.move_to_end(key)
        return _computed[key]
    expected = _computed[key] = make()
    while len(_computed) > most:
        _computed.popitem(last=False)
    return expected


def values(arrays: Mapping[str, Array]) -> Values:
    return {name: array.values for name, array in arrays.items()}


def without_warnings(function: Callable) -> Callable:
    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return quiet


BRANCHES = ("above", "floor", "carry", "write", "m0")


def counted(expected: Expected, copies: Values, nu_over_floor: np.ndarray) -> Expected:
    """``expected`` with counts of its kinks, elements and branches; an element is one step of one head of a sequence.

    Every step reads either above the normaliser's floor or on it. Its stabiliser is attained either by the decayed
    previous stabiliser (``carry``, ties included) or by the write (``write``), unless it is −∞, which nothing attains.
    Among the carried ones, ``m0`` counts those that no write has attained since the start, so that m still comes from
    m₀. A kink is a step at which one of these choices differs between copies: |n·q̂| equals its floor, or two
    candidates for m tie.

    Args:
        expected: the oracle's answer.
        copies: the inputs and their perturbed copies, stacked along B; the first copy is exact.
        nu_over_floor: ``n·q̂ / max(|n·q̂|, floor)`` of each copy, ``(copies·B, S, N)``.
    """
    above = np.abs(nu_over_floor) > 1 - 1e-12
    carried, alive = _carried(copies)
    B = expected.values["m0"].shape[0]
    if not B or not above.size:
        return replace(expected, spread=dict.fromkeys(BRANCHES, 0.0))

    def apart(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, B, *x.shape[1:])

    above, carried, alive = apart(above), apart(carried), apart(alive)
    kinks = (above != above[0]).any(axis=0) | ((carried != carried[0]) & alive).any(axis=0)
    untouched = np.logical_and.accumulate(carried[0] & alive[0], axis=1)
    counts = (above[0], ~above[0], carried[0] & alive[0], ~carried[0] & alive[0], untouched)
    spread = {name: float(count.sum()) for name, count in zip(BRANCHES, counts, strict=True)}
    return replace(expected, kinks=int(kinks.sum()), elements=above[0].size, spread=spread)


def _carried(arrays: Values) -> tuple[np.ndarray, np.ndarray]:
    """For every step: whether the decayed stabiliser attains the new one, and whether the new one is above −∞."""
    m, a, i = arrays["m0"], -np.logaddexp(0.0, -arrays["f"]), arrays["i"]
    carried, alive = np.zeros(i.shape, bool), np.zeros(i.shape, bool)
    for t in range(i.shape[1]):
        decayed = a[:, t] + m
        m = np.maximum(decayed, i[:, t])
        carried[:, t], alive[:, t] = i[:, t] <= decayed, ~np.isneginf(m)
    return carried, alive


def total(parts: list[dict[str, float]]) -> dict[str, float]:
    """The counts of several calls, added up."""
    return {name: sum(part.get(name, 0.0) for part in parts) for name in BRANCHES}
