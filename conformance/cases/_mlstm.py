"""Calls of `mlstm`, dense and packed, and options that some drawn calls are given."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import HALF, Array
from conformance.cases._case import (
    AS_DRAWN,
    LONG_STEPS,
    PINS,
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
from conformance.cases._gates import (
    ABOVE,
    ABOVE_64,
    AT_FLOOR,
    capped,
    gates,
    hold,
    moderate,
    moderate_gates,
    normaliser,
    scale_of_queries,
)
from conformance.cases._usual import LARGE, MLSTM_SIZES, PACKED_MLSTM_SIZES, Sizes
from conformance.cases._usual import lengths_of as usual_lengths


@register()
@dataclass(frozen=True)
class MLSTMCase(Sequences):
    """An mLSTM call.

    Attributes:
        B, S, N, K, V: sizes; for packed calls B and S follow from ``lengths``.
        lengths: lengths of packed sequences; None for a dense call.
        state: ``none``, ``random``, or ``empty`` (C = n = 0, m = −∞).
        gates: a regime of `GATES`.
        held: share of a sequence before the regime starts; until then the gates keep the initial memory.
        scale: magnitude of k and v, and of q if it is small.
        cotangents, cotangent_scale: a pattern of `COTANGENTS`, and the magnitude of its elements.
        chunk_size, eps: the options of the call.
        return_state: whether the final state is returned; without it only h has a cotangent.
        room: the excess of max_seqlen over the longest sequence; None omits max_seqlen.
        wide_gates: whether gates are float32 while values have a 16-bit dtype.
        distinct: the number of heads that differ, the others being copies of them; None if all differ. A large call
            then takes the oracle less time.
        cut: the position at which laws cut a sequence, as a share of S.
        layout: the memory layout of every array.
        removed: properties that were removed from the arrays (`conformance.cases._gates.REMOVABLE`).
        seed: the seed of all values.
        elements: the elements of every array, ``as drawn`` or one of `conformance.cases._case.SIMPLE`.
    """

    B: int
    S: int
    N: int
    K: int
    V: int
    lengths: tuple[int, ...] | None = None
    state: str = "none"
    gates: str = "ordinary"
    held: float = 0.0
    scale: float = 1.0
    cotangents: str = "dense"
    cotangent_scale: float = 1.0
    chunk_size: int | None = None
    eps: float = 0.0
    room: int | None = None
    wide_gates: bool = False
    distinct: int | None = None
    cut: float = 0.5
    layout: str = "contiguous"
    removed: tuple[str, ...] = ()
    seed: int = 0
    return_state: bool = True
    elements: str = AS_DRAWN

    @property
    def size(self) -> int:
        return (math.prod(self.tokens) + 1) * self.N * (self.K + self.V) + self.steps

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.chunk_size is not None:
            options["chunk_size"] = self.chunk_size
        if self.eps:
            options["eps"] = self.eps
        if self.room is not None:
            options["max_seqlen"] = self.steps + self.room
        if not self.return_state:
            options["return_state"] = False
        return options

    def _held_steps(self) -> list[slice]:
        """The first part of every sequence, along the step axis."""
        ends = np.cumsum(self.lengths or (self.S,))
        return [
            slice(int(end - S), int(end - S) + math.ceil(self.held * S))
            for end, S in zip(ends, self.lengths or (self.S,), strict=True)
        ]

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 1)
        lead, (B, N, K, V) = self.tokens, (self.sequences, self.N, self.K, self.V)
        i, f = gates(rng, self.gates, (*lead, N))
        hold(rng, i, f, self._held_steps())
        i, f = moderate_gates(i, f, self.removed)
        lean = rng.choice([-1.0, 1.0], (N, K))
        raw = {
            "q": min(self.scale, 1.0) * _lengths_of_queries(rng, (*lead, N)) * _leaning(rng, (*lead, N, K), lean),
            "k": self.scale * _leaning(rng, (*lead, N, K), lean),
            "v": self.scale * rng.normal(size=(*lead, N, V)),
            "i": i,
            "f": f,
        }
        state = {}
        if self.state == "random":
            m0 = rng.normal(size=(B, N)) + (70 if self.gates == "large m" else 0)
            m0 = moderate(m0) if "large input gates" in self.removed else m0
            m0 = capped(m0) if ABOVE_64 in self.removed else m0
            state = {"C0": rng.normal(size=(B, N, K, V)), "n0": _leaning(rng, (B, N, K), lean), "m0": m0}
        elif self.state == "empty":
            state = {"C0": np.zeros((B, N, K, V)), "n0": np.zeros((B, N, K)), "m0": np.full((B, N), -np.inf)}
        if ABOVE in self.removed or AT_FLOOR in self.removed:
            raw["q"] = raw["q"] * scale_of_queries(*self.normaliser({**raw, **state}), self.removed)[..., None]
        raw, state = self._repeated(raw, 2), self._repeated(state, 1)
        if self.lengths is not None:
            raw = {name: x[0] for name, x in raw.items()}
        return self.as_arrays(raw, state, dtype, "float32" if self.wide_gates and dtype in HALF else None)

    def normaliser(self, raw: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """|n·q̂| and its floor at every step, for arrays with a batch axis (of size 1 for packed sequences)."""
        B, N = self.sequences, self.N
        n0, m0 = raw.get("n0", np.zeros((B, N, self.K))), raw.get("m0", np.zeros((B, N)))
        q, k, i, f = (raw[name] for name in "qkif")
        if self.lengths is None:
            return normaliser(q, k, i, f, n0, m0)
        found = []
        for b, (S, end) in enumerate(zip(self.lengths, np.cumsum(self.lengths), strict=True)):
            at = slice(int(end) - S, int(end))
            found.append(normaliser(q[:, at], k[:, at], i[:, at], f[:, at], n0[b : b + 1], m0[b : b + 1]))
        if not found:
            return np.zeros(i.shape), np.ones(i.shape)
        nu, floor = zip(*found, strict=True)
        return np.concatenate(nu, axis=1), np.concatenate(floor, axis=1)

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        B, N, K, V = self.sequences, self.N, self.K, self.V
        shapes = {"h": (*self.tokens, N, V), "C": (B, N, K, V), "n": (B, N, K), "m": (B, N)}
        drawn = self.drawn_cotangents(2, dtype, shapes)
        if self.distinct is not None:
            axes = {name: (x.values.ndim - 2 if name == "h" else 1) for name, x in drawn.items()}
            drawn = {name: replace(x, values=x.values.take(self._copied, axes[name])) for name, x in drawn.items()}
        return drawn if self.return_state else {"h": drawn["h"]}

    def _repeated(self, arrays: dict[str, np.ndarray], axis: int) -> dict[str, np.ndarray]:
        return arrays if self.distinct is None else {name: x.take(self._copied, axis) for name, x in arrays.items()}

    @property
    def _copied(self) -> np.ndarray:
        """For each head the one that it is a copy of, in no regular order: its neighbours are not alike."""
        assert self.distinct is not None
        copied = generator(self.seed, 7).integers(0, self.distinct, self.N)
        copied[: self.distinct] = np.arange(min(self.distinct, self.N))
        return copied


def _lengths_of_queries(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Far from 1 on either side: |n·q̂| is then above its floor at some steps, on it at others, seldom near it."""
    return 10.0 ** (rng.choice([-1.0, 1.0, 1.0], (*shape, 1)) * rng.uniform(1.2, 1.7, (*shape, 1)))


def _leaning(rng: np.random.Generator, shape: tuple[int, ...], lean: np.ndarray) -> np.ndarray:
    """Normal numbers, almost all with the sign ``lean``: the terms of n·q̂ cancel in part, but not to roundoff."""
    return np.abs(rng.normal(size=shape)) * np.where(rng.random(shape) < 0.03, -lean, lean)


# (B, S, N, K, V, state, eps) per stratum, for compiled targets. float32 uses all rows, other dtypes the first.
_MLSTM_TABLE = {
    "small": ((2, 5, 3, 3, 2, True, 0.0), (2, 0, 1, 3, 2, True, 0.0), (1, 1, 1, 1, 1, True, 1e-3)),
    "chunk": ((1, 65, 2, 5, 3, True, 0.0), (2, 130, 1, 3, 5, False, 0.0)),
    "long": ((1, LONG_STEPS, 1, 4, 3, True, 0.0),),
}
# (B, T, N, K, V, eps), with a state.
_PACKED_TABLE = {
    "small": ((4, 9, 2, 3, 2, 0.0),),
    "chunk": ((3, 150, 1, 5, 3, 0.0),),
    "long": ((3, LONG_STEPS, 1, 4, 3, 0.0),),
}
_EPS = (0.0, 0.0, 0.0, 1e-3)


def _dynamic(limits: Limits, state: bool) -> st.SearchStrategy[dict[str, Any]]:
    return dynamic(limits, state=state, quick=("resets", "changing", "extreme"), largest=4.0)


def _usual_options(of: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    return {"chunk_size": of["chunk_size"], "distinct": 2 if sizes.work(of) > LARGE else None}


@st.composite
def mlstm(draw: Any, limits: Limits, **fixed: Any) -> MLSTMCase:
    """A dense mLSTM call; ``fixed`` pins fields.

    What gatespec's contract alone allows (float32 gates over 16-bit values, ``max_seqlen``) is drawn by the laws that
    are about it.
    """
    options: dict[str, Any] = {}
    if limits.stratum == USUAL:
        of = draw(MLSTM_SIZES.drawn(limits))
        B, S, N, K, V = of["B"], limited(of["S"], limits), of["N"], of["K"], of["V"]
        state, options = True, _usual_options(of, MLSTM_SIZES)
    elif limits.eager:
        if limits.stratum == "long":
            B, N, K, V = 1, draw(st.sampled_from((2, 1))), draw(st.sampled_from((4, 7))), draw(st.sampled_from((3, 5)))
        else:
            B = draw(st.sampled_from((2, 3) if limits.pin else (1, 2, 3, 0)))
            N = draw(st.sampled_from((3, 2) if limits.pin else (1, 2, 3)))
            # With K = 1 a wrong 1/√K is right, so cases that no run may miss have a larger K.
            K = draw(st.sampled_from((5, 3) if limits.pin else (1, 3, 5, 8, 17)))
            V = draw(st.sampled_from((2, 5) if limits.pin else (1, 2, 5, 11)))
        S, state = draw(st.sampled_from(limits.steps())), draw(st.sampled_from((False, True, True)))
        drawn = draw(st.sampled_from(_EPS))
        options["eps"] = _EPS[-1] if limits.pin == "small magnitude" else drawn
    else:
        B, S, N, K, V, state, options["eps"] = draw(rows(_MLSTM_TABLE, limits))
        S = limited(S, limits)
    case = MLSTMCase(B, S, N, K, V, **options, **draw(_dynamic(limits, state)))
    return replace(case, **fixed)


@st.composite
def packed_mlstm(draw: Any, limits: Limits, **fixed: Any) -> MLSTMCase:
    """A packed mLSTM call, with empty sequences."""
    if limits.stratum == USUAL:
        of = draw(PACKED_MLSTM_SIZES.drawn(limits))
        B, N, K, V, state, options = of["B"], of["N"], of["K"], of["V"], True, _usual_options(of, PACKED_MLSTM_SIZES)
        lengths = usual_lengths(B, limited(of["S"], limits))
    elif limits.eager:
        B = draw(st.sampled_from((3, 2) if limits.pin else (3, 1, 2, 5, 0)))
        T = 0 if B == 0 else draw(st.sampled_from(limits.steps()))
        N, K = draw(st.sampled_from((1, 2))), draw(st.sampled_from((3, 8) if limits.pin else (1, 3, 8)))
        V = draw(st.sampled_from((2, 5)))
        state = draw(st.sampled_from((False, True, True)))
        options = {
            "eps": draw(st.sampled_from(_EPS)),
            "chunk_size": draw(st.sampled_from((None, None, 1, 7, 16))) if limits.stratum != "long" else None,
        }
        lengths = lengths_of(draw, B, T, limits)
    else:
        B, T, N, K, V, eps = draw(rows(_PACKED_TABLE, limits))
        T, state, options = limited(T, limits), True, {"eps": eps}
        lengths = lengths_of(draw, B, T, limits)
    case = MLSTMCase(B, 0, N, K, V, lengths=lengths, **options, **draw(_dynamic(limits, state)))
    return replace(case, **fixed)


def without_states(case: MLSTMCase) -> MLSTMCase:
    """The case without its final state; a pattern with cotangents of the state alone becomes one with all."""
    cotangents = "dense" if case.cotangents == "state only" else case.cotangents
    return replace(case, return_state=False, cotangents=cotangents)


def some_without_states(strategy: Callable[[Limits], st.SearchStrategy]) -> Callable[[Limits], st.SearchStrategy]:
    """The strategy with some cases that return no final state, if another option needs no compilation."""

    def drawn(limits: Limits) -> st.SearchStrategy:
        if limits.pin or not limits.eager:
            return strategy(limits)
        chosen = st.sampled_from((False, False, False, True))
        return st.builds(lambda case, bare: without_states(case) if bare else case, strategy(limits), chosen)

    return drawn


_CHUNK_SIZES = {"small": (2, 1, 3, 7, 64), "chunk": (16, 1, 2, 13, 32, 64, 128, 131), "long": (64, 100, 256)}
_LONGEST_CHUNKS = {"small": 8, "chunk": 140, "long": 1100}


def chunk_sizes(limits: Limits) -> st.SearchStrategy:
    """Chunk sizes that divide the number of steps or do not, and some above it."""
    common = _CHUNK_SIZES[limits.stratum]
    return st.one_of(st.sampled_from(common), st.integers(common[0], _LONGEST_CHUNKS[limits.stratum]))


def some_in_chunks(strategy: Callable[[Limits], st.SearchStrategy]) -> Callable[[Limits], st.SearchStrategy]:
    """The strategy with a chunk size in two fifths of the cases, if another option needs no compilation.

    Many targets compute chunks by other code, which relations between two calls judge only in part.
    """

    def drawn(limits: Limits) -> st.SearchStrategy:
        if limits.pin or not limits.eager:
            return strategy(limits)
        chosen = st.sampled_from((False, False, False, True, True))

        def built(case: MLSTMCase, size: int, chunked: bool) -> MLSTMCase:
            return replace(case, chunk_size=size) if chunked else case

        return st.builds(built, strategy(limits), chunk_sizes(limits), chosen)

    return drawn


@st.composite
def sharded_mlstm(draw: Any, limits: Limits) -> MLSTMCase:
    """A dense or a packed call; where a new shape must be compiled, with steps that eight devices share equally."""
    if limits.eager:
        # Every second pin is of packed calls.
        packed = limits.pin in PINS[limits.stratum][1::2] if limits.pin else draw(st.booleans())
        dense = some_in_chunks(partial(mlstm, eps=0.0))
        case = draw(packed_mlstm(limits, eps=0.0) if packed else dense(limits))
    else:
        dynamic, T = draw(_dynamic(limits, True)), limited(16, limits)
        case = MLSTMCase(2, T, 2, 3, 2, **dynamic)
        # A sequence that begins where a shard does must not read what is left of the one before it.
        if limits.pin == "held" or (not limits.pin and draw(st.booleans())):
            case = replace(case, B=4, S=0, lengths=lengths_of(draw, 4, T, limits))
    # The definition does not say where the cotangent of m goes if the last memory is empty.
    return replace(case, cotangents="output only") if case.gates in ("closed", "mixed") else case


def halved_mlstm(limits: Limits) -> st.SearchStrategy:
    """Cases whose halves have the shape of a row; the small ones may also be cut after one step or before the last.

    Of usual sizes, any.
    """

    if limits.stratum == USUAL:
        return mlstm(limits)

    def cut(case: MLSTMCase, place: int) -> MLSTMCase:
        one, several = (1, case.S) if place == 1 else (case.S, 1)
        if limits.stratum == "small" and place and case.S < limits.max_steps:
            return replace(case, S=case.S + 1, cut=one / (one + several))
        return replace(case, S=min(2 * case.S, limits.max_steps))

    whole = mlstm(limits).filter(lambda case: case.state != "none" and case.S > 1)
    return st.builds(cut, whole, st.sampled_from((0, 1, 2)))
