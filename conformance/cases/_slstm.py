"""Calls of `slstm`, dense and packed."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
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
from conformance.cases._gates import gates, hold, moderate, moderate_gates
from conformance.cases._usual import PACKED_SLSTM_SIZES, SLSTM_SIZES
from conformance.cases._usual import lengths_of as usual_lengths

SLSTM_WEIGHTS = ("weight_z", "weight_i", "weight_f", "weight_o")
EXPONENTIAL_SHIFT = 2.0
"""Exponential forget gates are lower than sigmoid ones by this: around 0, at which they keep a memory."""
HELD_SHIFT = 7.0


@register()
@dataclass(frozen=True)
class SLSTMCase(Sequences):
    """An sLSTM call.

    Attributes:
        B, S, N, H: sizes; for packed calls B and S follow from ``lengths``.
        lengths: lengths of packed sequences; None for a dense call.
        state: ``none``, ``random``, or ``empty`` (c = n = h = 0, m = −∞).
        gates: a regime of `conformance.cases.GATES` for the input and the forget gates of every element.
        held: share of a sequence before the regime starts; until then the gates keep the initial memory.
        scale: magnitude of z and o, and of weights if it is small.
        forget_gate: None for the default, or the option of the call.
        with_gradient_clipping: the call's gradient clipping.
        cotangents, cotangent_scale: a pattern of `COTANGENTS`, and the magnitude of its elements. The cotangent of a
            final m of −∞ is 0, because nothing attains it.
        room: the excess of max_seqlen over the longest sequence; None omits max_seqlen.
        cut: the position at which laws cut a sequence, as a share of S.
        layout: the memory layout of every array.
        removed: properties that were removed from the gates (`conformance.cases._gates.REMOVABLE`).
        seed: the seed of all values.
        return_state: whether the final state is returned; without it only h has a cotangent.
        elements: the elements of every array, ``as drawn`` or one of `conformance.cases._case.SIMPLE`.
    """

    B: int
    S: int
    N: int
    H: int
    lengths: tuple[int, ...] | None = None
    state: str = "none"
    gates: str = "ordinary"
    held: float = 0.0
    scale: float = 1.0
    forget_gate: str | None = None
    with_gradient_clipping: float | None = None
    cotangents: str = "dense"
    cotangent_scale: float = 1.0
    room: int | None = None
    cut: float = 0.5
    layout: str = "contiguous"
    removed: tuple[str, ...] = ()
    seed: int = 0
    return_state: bool = True
    elements: str = AS_DRAWN

    @property
    def exponential(self) -> bool:
        return self.forget_gate == "exp"

    @property
    def size(self) -> int:
        return (math.prod(self.tokens) + self.H) * 4 * self.N * self.H + self.steps

    def options(self) -> dict[str, Any]:
        fields = {"forget_gate": self.forget_gate, "gradient_clipping": self.with_gradient_clipping}
        options: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if self.room is not None:
            options["max_seqlen"] = self.steps + self.room
        if not self.return_state:
            options["return_state"] = False
        return options

    def _spans(self) -> list[slice]:
        """The steps of every sequence, along the step axis."""
        ends = [0, *np.cumsum(self.lengths).tolist()] if self.lengths is not None else [0, self.S]
        return [slice(*span) for span in pairwise(ends)]

    def _gates(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Preactivations i and f, ``(1 or B, steps, N, H)``."""
        shape = (*self.tokens, self.N * self.H)
        i, f = gates(rng, self.gates, shape)
        if self.exponential:
            f = np.where(np.isposinf(f), 0.0, f - EXPONENTIAL_SHIFT)
        parts = [
            slice(span.start, span.start + math.ceil(self.held * (span.stop - span.start))) for span in self._spans()
        ]
        hold(rng, i, f, parts)
        if self.exponential:
            for part in parts:
                f[:, part] -= HELD_SHIFT
        i, f = moderate_gates(i, f, self.removed)
        return i.reshape(*self.tokens, self.N, self.H), f.reshape(*self.tokens, self.N, self.H)

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng, (N, H) = generator(self.seed, 5), (self.N, self.H)
        i, f = self._gates(rng)
        z, o = self.scale * rng.normal(size=(2, *i.shape))
        weights = min(self.scale, 1.0) * rng.normal(size=(4, N, H, H)) / math.sqrt(max(H, 1))
        raw = {"z": z, "i": i, "f": f, "o": o}
        if self.lengths is not None:
            raw = {name: x[0] for name, x in raw.items()}
        raw |= dict(zip(SLSTM_WEIGHTS, weights, strict=True))
        c, n, m, h = rng.normal(size=(4, self.sequences, N, H))
        state = {}
        if self.state == "random":
            m = m + (70 if self.gates == "large m" else 0)
            m = moderate(m) if "large input gates" in self.removed else m
            n = 0.5 + np.abs(n)
            state = {"c0": np.tanh(c) * n, "n0": n, "m0": m, "h0": np.tanh(h)}
        elif self.state == "empty":
            state = {"c0": 0 * c, "n0": 0 * n, "m0": np.full(m.shape, -np.inf), "h0": 0 * h}
        return self.as_arrays(raw, state, dtype)

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        shape = (self.sequences, self.N, self.H)
        shapes = {"h": (*self.tokens, self.N, self.H), **dict.fromkeys(("c", "n", "m", "last_h"), shape)}
        drawn = self.drawn_cotangents(6, dtype, shapes)
        if not self.return_state:
            return {"h": drawn["h"]}
        return {**drawn, "m": replace(drawn["m"], values=np.where(self._written(dtype), drawn["m"].values, 0.0))}

    def _written(self, dtype: str) -> np.ndarray:
        """Whether the final memory of each element holds anything, so that its m is above −∞."""
        arrays = self.arrays(dtype)
        written = np.full((self.sequences, self.N, self.H), self.state == "random")
        i, f = (arrays[name].values for name in "if")
        for t in range(self.steps):
            for b, span in enumerate(self._spans()):
                at, of = ((slice(None), t), slice(None)) if self.lengths is None else (span.start + t, b)
                if span.start + t < span.stop:
                    written[of] = (written[of] & ~np.isneginf(f[at])) | ~np.isneginf(i[at])
        return written


# (B, S, N, H, state, forget_gate, clipping)
_SLSTM_TABLE = {
    "small": (
        (2, 5, 2, 3, True, None, None),
        (2, 0, 2, 3, True, None, None),
        (3, 5, 1, 2, True, "exp", None),
    ),
    "chunk": ((2, 65, 2, 3, True, None, None), (1, 97, 1, 5, True, "exp", None)),
    "long": ((1, LONG_STEPS, 1, 4, True, None, None),),
}
# (B, T, N, H, forget_gate)
_PACKED_SLSTM_TABLE = {
    "small": ((4, 9, 2, 3, None),),
    "chunk": ((3, 150, 1, 3, None),),
    "long": ((3, LONG_STEPS, 1, 3, None),),
}
_PINNED_FORGET_GATES = {"well-conditioned": None, "small magnitude": "sigmoid", "held": "exp"}


def _dynamic(limits: Limits, state: bool) -> st.SearchStrategy[dict[str, Any]]:
    return dynamic(limits, state=state, quick=("resets", "closed", "extreme"), largest=2.0)


@st.composite
def slstm(draw: Any, limits: Limits, **fixed: Any) -> SLSTMCase:
    """A dense sLSTM call; ``fixed`` pins fields."""
    if limits.stratum == USUAL:
        of = draw(SLSTM_SIZES.drawn(limits))
        B, S, N, H, state, clipping = of["B"], limited(of["S"], limits), of["N"], of["H"], True, None
        forget_gate = (None, "exp")[(limits.row or 0) % 2]
    elif limits.eager:
        B = 1 if limits.stratum == "long" else draw(st.sampled_from((2, 3) if limits.pin else (2, 1, 3, 0)))
        S, N = draw(st.sampled_from(limits.steps())), draw(st.sampled_from((2, 1, 3)))
        H, state = (
            draw(st.sampled_from((3, 2, 5) if limits.pin else (3, 1, 2, 5))),
            draw(st.sampled_from((False, True, True))),
        )
        drawn = draw(st.sampled_from((None, None, "sigmoid", "exp")))
        forget_gate = _PINNED_FORGET_GATES[limits.pin] if limits.pin else drawn
        clipping = draw(st.sampled_from((None, None, 0.1, -0.5)))
    else:
        B, S, N, H, state, forget_gate, clipping = draw(rows(_SLSTM_TABLE, limits))
        S = limited(S, limits)
    dynamic = draw(_dynamic(limits, state))
    case = SLSTMCase(B, S, N, H, forget_gate=forget_gate, with_gradient_clipping=clipping, **dynamic)
    return replace(case, **fixed)


@st.composite
def packed_slstm(draw: Any, limits: Limits, **fixed: Any) -> SLSTMCase:
    """A packed sLSTM call, with empty sequences."""
    if limits.stratum == USUAL:
        of = draw(PACKED_SLSTM_SIZES.drawn(limits))
        B, N, H, state, forget_gate, clipping = of["B"], of["N"], of["H"], True, None, None
        lengths = usual_lengths(B, limited(of["S"], limits))
    elif limits.eager:
        B = draw(st.sampled_from((3, 2) if limits.pin else (3, 1, 2, 5, 0)))
        T = 0 if B == 0 else draw(st.sampled_from(limits.steps()))
        N, H = draw(st.sampled_from((1, 2))), draw(st.sampled_from((3, 1, 2)))
        state = draw(st.sampled_from((False, True, True)))
        forget_gate, clipping = draw(st.sampled_from((None, None, "exp"))), draw(st.sampled_from((None, None, 0.1)))
        lengths = lengths_of(draw, B, T, limits)
    else:
        B, T, N, H, forget_gate = draw(rows(_PACKED_SLSTM_TABLE, limits))
        T, state, clipping = limited(T, limits), True, None
        lengths = lengths_of(draw, B, T, limits)
    dynamic = draw(_dynamic(limits, state))
    case = SLSTMCase(B, 0, N, H, lengths=lengths, forget_gate=forget_gate, with_gradient_clipping=clipping, **dynamic)
    return replace(case, **fixed)


def halved_slstm(limits: Limits) -> st.SearchStrategy:
    """Cases whose halves have the shape of a row; of usual sizes, any."""
    if limits.stratum == USUAL:
        return slstm(limits)
    whole = slstm(limits).filter(lambda case: case.state != "none" and case.S > 1)
    return whole.map(lambda case: replace(case, S=min(2 * case.S, limits.max_steps)))
