"""Calls of `gru`, dense and packed."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import Array
from conformance.cases._case import (
    AS_DRAWN,
    LONG_STEPS,
    USUAL,
    Limits,
    Sequences,
    dynamic,
    generator,
    lengths_of,
    limited,
    register,
    rows,
)
from conformance.cases._gates import MODERATE, moderate
from conformance.cases._usual import GRU_SIZES, PACKED_GRU_SIZES
from conformance.cases._usual import lengths_of as usual_lengths

GRU_OPTIONS = {"clipping": "gradient_clipping", "reset_after": "reset_after"}
"""The fields of a case that hold an option on which the result depends; None or False omits it."""

NO_GRU_OPTIONS: dict[str, Any] = {**dict.fromkeys(GRU_OPTIONS), "reset_after": False}
"""These fields for a call without options."""

GRU_GATES = ("ordinary", "small", "remembering", "saturated", "closed", "extreme")


@register()
@dataclass(frozen=True)
class GRUCase(Sequences):
    """A GRU call.

    Attributes:
        B, S, H: sizes; for packed calls B and S follow from ``lengths``.
        heads: the six head counts in the order of the arguments (input, weight, forget input, ...).
        lengths: lengths of packed sequences; None for a dense call.
        state: whether an initial state is given.
        gates: a regime of `GRU_GATES` for the forget and reset preactivations.
        scale: magnitude of inputs and weights.
        clipping: the call's gradient clipping.
        room: the excess of max_seqlen over the longest sequence; None omits max_seqlen.
        cotangents, cotangent_scale: a pattern of `COTANGENTS`, and the magnitude of its elements.
        removed: properties that were removed from the preactivations of the forget and the reset gate.
        reset_after: whether the reset gate is applied after the recurrent product.
        bias: whether a recurrent bias is given, if it is.
        elements: the elements of every array, ``as drawn`` or one of `conformance.cases._case.SIMPLE`.
    """

    B: int
    S: int
    H: int
    heads: tuple[int, int, int, int, int, int]
    lengths: tuple[int, ...] | None = None
    state: bool = False
    gates: str = "ordinary"
    scale: float = 1.0
    clipping: float | None = None
    room: int | None = None
    cotangents: str = "dense"
    cotangent_scale: float = 1.0
    cut: float = 0.5
    layout: str = "contiguous"
    removed: tuple[str, ...] = ()
    seed: int = 0
    elements: str = AS_DRAWN
    reset_after: bool = False
    bias: bool = False

    @property
    def N(self) -> int:
        return max(self.heads)

    @property
    def size(self) -> int:
        return (math.prod(self.tokens) + 1) * sum(self.heads) * self.H + self.steps

    def options(self) -> dict[str, Any]:
        fields = {option: getattr(self, field) for field, option in GRU_OPTIONS.items()}
        given = {option: value for option, value in fields.items() if value not in (None, False)}
        return given if self.room is None else {**given, "max_seqlen": self.steps + self.room}

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 3)
        H, lead = self.H, self.tokens
        Nx, Nw, Nxf, Nwf, Nxr, Nwr = self.heads
        forget, reset = self._preactivations(rng, (*lead, Nxf, H)), self._preactivations(rng, (*lead, Nxr, H))
        forget, reset = self._moderated(forget), self._moderated(reset)
        raw = {
            "input": self.scale * rng.normal(size=(*lead, Nx, H)),
            "weight": self._weight(rng, Nw),
            "forget_input": forget,
            "forget_weight": self._weight(rng, Nwf),
            "reset_input": reset if self.gates != "remembering" else rng.normal(size=reset.shape),
            "reset_weight": self._weight(rng, Nwr),
        }
        if self.lengths is not None:
            raw = {name: x if name.endswith("weight") else x[0] for name, x in raw.items()}
        if self.reset_after and self.bias:
            raw["recurrent_bias"] = self.scale * rng.normal(size=(Nw, H))
        state = {"input_state": rng.normal(size=(self.sequences, self.N, H))} if self.state else {}
        return self.as_arrays(raw, state, dtype)

    def _weight(self, rng: np.random.Generator, heads: int) -> np.ndarray:
        return min(self.scale, 1.0) * rng.normal(size=(heads, self.H, self.H)) / math.sqrt(self.H)

    def _preactivations(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.normal(size=shape)
        if self.gates == "small":
            return 1e-3 * x
        if self.gates == "remembering":
            return 8 + x
        if self.gates == "saturated":
            return 15 * x
        if self.gates == "closed":
            return x - 8
        if self.gates == "extreme":
            return rng.choice(np.array([np.inf, -np.inf, 1e4, -1e4, 0.0, 30.0]), shape)
        return x

    def _moderated(self, x: np.ndarray) -> np.ndarray:
        if "infinite gates" in self.removed:
            x = np.where(np.isinf(x), np.sign(x) * MODERATE, x)
        return moderate(x) if "large gates" in self.removed else x

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        shapes = {"y": (*self.tokens, self.N, self.H), "state": (self.sequences, self.N, self.H)}
        return self.drawn_cotangents(4, dtype, shapes)


_ONE = (1, 1, 1, 1, 1, 1)
HEADS = (
    (6, 3, 2, 1, 6, 2),
    (2, 2, 2, 2, 2, 2),
    (1, 4, 2, 4, 1, 2),
    (1, 1, 1, 6, 1, 3),
    (2, 1, 4, 1, 2, 4),
    _ONE,
    (3, 1, 1, 3, 3, 1),
)
# (B, S, H, heads, state, clipping)
_GRU_TABLE = {
    "small": ((2, 5, 3, HEADS[0], True, None), (3, 5, 2, HEADS[2], False, None), (2, 0, 3, HEADS[1], True, None)),
    "chunk": ((2, 65, 3, HEADS[0], True, None), (1, 97, 5, HEADS[3], True, None)),
    "long": ((1, LONG_STEPS, 4, HEADS[4], True, None),),
}
_PACKED_GRU_TABLE = {
    "small": ((4, 9, 3, HEADS[0], None),),
    "chunk": ((3, 150, 2, HEADS[2], None),),
    "long": ((3, LONG_STEPS, 3, HEADS[1], None),),
}


def _dynamic(limits: Limits) -> st.SearchStrategy[dict[str, Any]]:
    return dynamic(
        limits,
        quick=("closed", "saturated", "extreme"),
        largest=2.0,
        state=None,
        regimes=GRU_GATES,
        long=("remembering", "ordinary"),
    )


def _heads(of: dict[str, Any]) -> tuple[int, int, int, int, int, int]:
    """The head counts of usual sizes: those of a row, or all equal to a number that was asked for."""
    N = of.get("N")
    return of["heads"] if N is None else (N, N, N, N, N, N)


@st.composite
def gru(draw: Any, limits: Limits, **fixed: Any) -> GRUCase:
    if limits.stratum == USUAL:
        of = draw(GRU_SIZES.drawn(limits))
        B, S, H, heads, state, clipping = of["B"], limited(of["S"], limits), of["H"], _heads(of), True, None
    elif limits.eager:
        B = 1 if limits.stratum == "long" else draw(st.sampled_from((2, 3) if limits.pin else (2, 1, 3, 0)))
        S, H = draw(st.sampled_from(limits.steps())), draw(st.sampled_from((3, 1, 2, 5)))
        heads, state = draw(st.sampled_from(HEADS)), bool(limits.pin) or draw(st.booleans())
        clipping = draw(st.sampled_from((None, 0.1, -0.5, 2.0)))
    else:
        B, S, H, heads, state, clipping = draw(rows(_GRU_TABLE, limits))
        S = limited(S, limits)
    case = GRUCase(B, S, H, heads, state=state, clipping=clipping, **draw(_dynamic(limits)))
    return replace(case, **fixed)


@st.composite
def packed_gru(draw: Any, limits: Limits, **fixed: Any) -> GRUCase:
    if limits.stratum == USUAL:
        of = draw(PACKED_GRU_SIZES.drawn(limits))
        B, H, heads, state, clipping = of["B"], of["H"], _heads(of), True, None
        lengths = usual_lengths(B, limited(of["S"], limits))
    elif limits.eager:
        B = draw(st.sampled_from((3, 2) if limits.pin else (3, 1, 2, 5, 0)))
        T = 0 if B == 0 else draw(st.sampled_from(limits.steps()))
        H, heads = draw(st.sampled_from((3, 1, 2))), draw(st.sampled_from(HEADS))
        state, clipping = bool(limits.pin) or draw(st.booleans()), draw(st.sampled_from((None, 0.1)))
        lengths = lengths_of(draw, B, T, limits)
    else:
        B, T, H, heads, clipping = draw(rows(_PACKED_GRU_TABLE, limits))
        lengths, state = lengths_of(draw, B, limited(T, limits), limits), True
    dynamic = draw(_dynamic(limits))
    case = GRUCase(B, 0, H, heads, lengths=lengths, state=state, clipping=clipping, **dynamic)
    return replace(case, **fixed)


def halved_gru(limits: Limits) -> st.SearchStrategy:
    """Cases whose halves have the shape of a row; of usual sizes, any."""
    if limits.stratum == USUAL:
        return gru(limits)
    whole = gru(limits).filter(lambda case: case.heads == HEADS[0])
    return whole.map(lambda case: replace(case, S=min(2 * case.S, limits.max_steps)))
