"""Calls of `ema`."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import Array, accumulation, array
from conformance.cases._case import COTANGENTS, SEEDS, Limits, cotangent, generator, limited, register, rows, words


@register()
@dataclass(frozen=True)
class EMACase:
    """A call of `ema`.

    Attributes:
        gates: ``ordinary``, or ``extreme``: open, shut, or half open.
        cut: where laws that cut a sequence do so, as a share of S.
    """

    B: int
    S: int
    N: int
    state: bool = False
    gates: str = "ordinary"
    scale: float = 1.0
    cotangents: str = "dense"
    cut: float = 0.5
    layout: str = "contiguous"
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.S

    @property
    def size(self) -> int:
        return (self.B * self.S + 1) * self.N + self.S

    def describe(self) -> str:
        return words(self, told=("gates", "seed"))

    def options(self) -> dict[str, Any]:
        return {}

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 60)
        shape = (self.B, self.S, self.N)
        x, f = self.scale * rng.normal(size=shape), 2 + rng.normal(size=shape)
        if self.gates == "extreme":
            f = rng.choice([np.inf, -np.inf, 0.0], shape)
        arrays = {"x": array(x, dtype, self.layout), "f": array(f, dtype, self.layout)}
        if self.state:
            arrays["initial"] = array(rng.normal(size=(self.B, self.N)), accumulation(dtype), self.layout)
        return arrays

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 61)
        shapes = {"y": (self.B, self.S, self.N), "last": (self.B, self.N)}
        raw = {name: cotangent(rng, name, shape, self.cotangents, "y") for name, shape in shapes.items()}
        return {name: array(x, dtype if name == "y" else accumulation(dtype)) for name, x in raw.items()}


_TABLE = {"small": ((2, 5, 3, True),), "chunk": ((1, 65, 2, True),), "long": ((1, 1031, 2, True),)}


@st.composite
def ema(draw: Any, limits: Limits, **fixed: Any) -> EMACase:
    if limits.eager:
        B, N = draw(st.sampled_from((2, 1, 3))), draw(st.sampled_from((3, 1, 2)))
        S, state = draw(st.sampled_from(limits.steps())), draw(st.booleans())
    else:
        B, S, N, state = draw(rows(_TABLE, limits))
    case = EMACase(
        B,
        limited(S, limits),
        N,
        state,
        draw(st.sampled_from(("ordinary", "extreme"))),
        draw(st.sampled_from((1.0, 0.01, 4.0))),
        draw(st.sampled_from(COTANGENTS)),
        layout=draw(st.sampled_from(limits.layouts)),
        seed=draw(SEEDS),
    )
    return replace(case, **fixed)
