"""Calls of the scans and of the decay matrices."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import Array, array
from conformance.cases._case import (
    AS_DRAWN,
    COTANGENT_SCALES,
    LONG_STEPS,
    SEEDS,
    USUAL,
    Limits,
    cotangent_scale,
    generator,
    limited,
    register,
    replaced,
    rows,
    words,
)
from conformance.cases._usual import DECAY_SIZES, SCAN_SIZES, Sizes


@register()
@dataclass(frozen=True)
class SumCase:
    """A call of a scan or of a decay matrix.

    Attributes:
        lead: leading axes.
        S: steps, the last axis.
        values: ``ordinary``, ``small``, ``same sign`` (sums grow like S), ``wide`` (magnitudes from 1e-4 to 1e4), and
            for gates also ``resets`` (including −∞) and ``extreme``.
        elements: the elements of every array, ``as drawn`` or one of `conformance.cases._case.SIMPLE`.
        masked_cotangents: whether elements of D̃ that are −∞ have cotangents.
        cotangent_scale: the magnitude of the cotangents.
    """

    lead: tuple[int, ...]
    S: int
    values: str = "ordinary"
    layout: str = "contiguous"
    seed: int = 0
    elements: str = AS_DRAWN
    masked_cotangents: bool = True
    cotangent_scale: float = 1.0

    @property
    def steps(self) -> int:
        return self.S

    @property
    def size(self) -> int:
        return math.prod(self.lead) * self.S + self.S

    def describe(self) -> str:
        return words(self, told=("values", "seed"))

    def draw(self, salt: int) -> np.ndarray:
        rng, shape = generator(self.seed, salt), (*self.lead, self.S)
        x = rng.normal(size=shape)
        if self.values == "small":
            return 1e-3 * x
        if self.values == "same sign":
            return np.abs(x)
        if self.values == "wide":
            return x * 10.0 ** rng.integers(-3, 4, shape)
        return x

    def scan(self, dtype: str) -> dict[str, Array]:
        return {"x": self._array(self.draw(5), dtype)}

    def log_gates(self, dtype: str) -> dict[str, Array]:
        a = -np.abs(self.draw(6))
        if self.values in ("resets", "extreme"):
            a = np.where(generator(self.seed, 7).random(a.shape) < 0.2, -np.inf, a)
        # Logarithms of decays stay negative.
        return {"forget_gates": array(-replaced(-a, self.elements), dtype, self.layout)}

    def preactivations(self, dtype: str) -> dict[str, Array]:
        i, f = self.draw(8), self.draw(9)
        rng = generator(self.seed, 10)
        if self.values == "resets":
            f = np.where(rng.random(f.shape) < 0.2, -np.inf, np.where(rng.random(f.shape) < 0.2, np.inf, f))
        if self.values == "extreme":
            f = rng.choice(np.array([1e4, -1e4, np.inf, -np.inf, 30.0]), f.shape)
            i = rng.choice(np.array([1e4, -1e4, 0.0, -np.inf]), i.shape)
        return {"igate": self._array(i[..., None], dtype), "fgate": self._array(f[..., None], dtype)}

    def cotangent(self, dtype: str, *, square: bool) -> dict[str, Array]:
        shape = (*self.lead, self.S, self.S) if square else (*self.lead, self.S)
        drawn = replaced(generator(self.seed, 11).normal(size=shape), self.elements)
        return {"y": array(cotangent_scale(self, dtype) * drawn, dtype)}

    def _array(self, x: np.ndarray, dtype: str) -> Array:
        return array(replaced(x, self.elements), dtype, self.layout)


_SUM_TABLE = {
    "small": (((2, 3), 5), ((2,), 0)),
    "chunk": (((2,), 65),),
    "long": (((2,), LONG_STEPS),),
}


@st.composite
def sums(
    draw: Any,
    limits: Limits,
    values: tuple[str, ...] = ("ordinary", "small", "same sign", "wide"),
    sizes: Sizes = SCAN_SIZES,
    **fixed: Any,
) -> SumCase:
    if limits.stratum == USUAL:
        of, number = draw(sizes.drawn(limits)), draw(st.integers(0, 7)) if limits.row is None else limits.row
        scale = COTANGENT_SCALES[number % len(COTANGENT_SCALES)]
        # A scan is cheap: only a limit that was lowered shortens it.
        S = of["S"] if limits.max_steps >= LONG_STEPS else limited(of["S"], limits)
        case = SumCase(of["lead"], S, seed=limits.seed + number, cotangent_scale=scale)
        return replace(case, **fixed)
    if limits.eager:
        leads = ((2,), (), (2, 3), (1, 1, 2), *(() if limits.pin else ((0,),)))
        lead = draw(st.sampled_from(leads)) if limits.stratum != "long" else (2,)
        # Laws about matrices have no long stratum, so one case is pinned to their largest number of steps.
        S = limits.steps()[-1] if limits.pin == "small magnitude" else draw(st.sampled_from(limits.steps()))
    else:
        lead, S = draw(rows(_SUM_TABLE, limits))
        S = limited(S, limits)
    # The pins have the first two.
    layout, value = draw(st.sampled_from(limits.layouts)), draw(st.sampled_from(values[2:] if limits.quick else values))
    scale = 1.0 if limits.pin else draw(st.sampled_from(COTANGENT_SCALES))
    case = SumCase(lead, S, _PINS[limits.pin] if limits.pin else value, layout, draw(SEEDS), cotangent_scale=scale)
    return replace(case, **fixed)


_PINS = {"well-conditioned": "ordinary", "small magnitude": "small", "held": "same sign"}


def gate_sums(limits: Limits) -> st.SearchStrategy:
    return sums(limits, ("ordinary", "small", "resets", "wide", "extreme"), DECAY_SIZES)
