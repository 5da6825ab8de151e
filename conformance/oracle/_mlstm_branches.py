"""The branch that each step of an mLSTM takes, counted, because a gradient law tests only those that its data reach."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.oracle._common import Values
from conformance.oracle._large import each_sequence
from conformance.tolerance.budget import Expected, Precision
from reference._gates import log_sigmoid
from reference._mlstm import _write
from reference.arguments import MLSTMState

BRANCHES = ("above", "floor", "carry", "write", "m0")


def counted(
    expected: Expected, arrays: Values, precision: Precision, floor: Callable[[np.ndarray], np.ndarray]
) -> Expected:
    """``expected`` with counts of its kinks, elements and branches; an element is one step of one head of a sequence.

    Every step reads either above the normaliser's floor or on it. Its stabiliser is attained either by the decayed
    previous stabiliser (``carry``, ties included) or by the write (``write``), unless it is −∞, which nothing attains.
    Among the carried ones, ``m0`` counts those that no write has attained since the start, so that m still comes from
    m₀. A kink is a step at which rounding may change one of these choices: |n·q̂| is close to its floor, or two
    candidates for m tie.

    Args:
        expected: the answer to a call with a state.
        floor: the normaliser's floor, given m.
    """
    spread, kinks, elements = dict.fromkeys(BRANCHES, 0.0), 0, 0
    calls = [(arrays, {})] if "cu_seqlens" not in arrays else each_sequence(arrays, {})
    for own, _ in calls:
        counts, of_own = _of_dense(own, precision, floor)
        kinks, elements = kinks + of_own, elements + own["i"].size
        spread = {name: spread[name] + float(count) for name, count in zip(BRANCHES, counts, strict=True)}
    return replace(expected, kinks=kinks, elements=elements, spread=spread)


def _of_dense(arrays: Values, precision: Precision, floor: Callable[[np.ndarray], np.ndarray]) -> tuple[list[int], int]:
    q, k, i = (arrays[name] for name in "qki")
    a, no_v = log_sigmoid(arrays["f"]), arrays["v"][..., :0]
    state = MLSTMState(arrays["C0"][..., :0], arrays["n0"], arrays["m0"])
    counts, kinks = [0] * len(BRANCHES), 0
    untouched = np.ones(state.m.shape, bool)
    for t in range(i.shape[1]):
        carried = a[:, t] + state.m
        state = _write(k[:, t], no_v[:, t], i[:, t], a[:, t], state)
        terms, m = state.n * q[:, t] / np.sqrt(q.shape[-1]), state.m
        nu, size, least = np.abs(terms.sum(axis=-1)), np.abs(terms).sum(axis=-1), floor(m)
        above, alive, carries = nu > least, ~np.isneginf(m), i[:, t] <= carried
        untouched &= carries & alive
        largest = np.maximum(1.0, np.abs(np.where(alive, m, 0.0)))
        tied = alive & (np.abs(carried - i[:, t]) <= precision.growth * largest)
        kinks += int(((np.abs(nu - least) <= precision.operand * size) | tied).sum())
        found = (above, ~above, carries & alive, ~carries & alive, untouched)
        counts = [count + int(each.sum()) for count, each in zip(counts, found, strict=True)]
    return counts, kinks
