"""Sequences of the mLSTM, and packings, that are cut into shards anywhere; and what the whole of them gives."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.cases import PINS, SEEDS, Limits, generator, register
from reference import MLSTMState

N, K, V = 2, 3, 4
NAMES = "qkvif"
KINDS = ("plain", "resets", "silent", "large")


@register()
@dataclass(frozen=True)
class ShardCase:
    """Dense sequences of ``steps`` steps, or a packing of so many tokens.

    Attributes:
        cuts: the steps at which shards begin, but for the first; they do not fall, and may repeat.
        bounds: ``cu_seqlens``; None for ``sequences`` dense sequences.
        kind: of gates: plain ones, hard resets among them, silent steps among them, or large ones.
        given: whether there is an initial state.
    """

    steps: int
    cuts: tuple[int, ...]
    bounds: tuple[int, ...] | None = None
    kind: str = "plain"
    given: bool = True
    sequences: int = 2
    seed: int = 0

    @property
    def size(self) -> int:
        return self.steps * len(self.cuts)

    @property
    def B(self) -> int:
        return self.sequences if self.bounds is None else len(self.bounds) - 1

    @property
    def borders(self) -> list[int]:
        """The first step of every shard, and the number of all steps."""
        return [0, *self.cuts, self.steps]

    def describe(self) -> str:
        what = f"{self.B} sequences of {self.steps} steps" if self.bounds is None else f"cu_seqlens={[*self.bounds]}"
        state = "with" if self.given else "without"
        return f"{what}, shards {self.borders}, {self.kind} gates, {state} an initial state, seed={self.seed}"

    def shards(self, x: np.ndarray) -> list[np.ndarray]:
        """An array of all tokens in shards."""
        axis = 0 if self.bounds is not None else 1
        return [x[(slice(None),) * axis + (slice(*ends),)] for ends in pairwise(self.borders)]

    def joined(self, parts: Any) -> np.ndarray:
        return np.concatenate([np.asarray(x) for x in parts], 0 if self.bounds is not None else 1)


class Values(NamedTuple):
    """The arrays of a case in float64: tokens, the initial state, the cotangents of h and of the final state."""

    tokens: list[np.ndarray]
    initial: MLSTMState | None
    dh: np.ndarray
    dstate: MLSTMState


class Whole(NamedTuple):
    """What the unsharded call gives: h, the final state, and the gradients by name."""

    h: np.ndarray
    state: MLSTMState
    gradients: dict[str, Any]


def values(case: ShardCase) -> Values:
    rng = generator(case.seed, 70)
    lead = (case.B, case.steps) if case.bounds is None else (case.steps,)
    q, k, v, i, f = (rng.normal(size=(*lead, *width)) for width in ((N, K), (N, K), (N, V), (N,), (N,)))
    if case.kind == "resets":
        f[rng.random(f.shape) < 0.3] = -np.inf
    elif case.kind == "silent":
        silent = rng.random(lead) < 0.5
        i[silent], f[silent] = -np.inf, np.inf
    elif case.kind == "large":
        i, f = 300 * i, 300 * f
    states = [MLSTMState(*(rng.normal(size=(case.B, N, *width)) for width in ((K, V), (K,), ()))) for _ in range(2)]
    return Values([q, k, v, i, f], states[0] if case.given else None, rng.normal(size=v.shape), states[1])


def options(case: ShardCase, x: Values) -> dict[str, Any]:
    bounds = None if case.bounds is None else np.array(case.bounds)
    return {"initial_state": x.initial, "cu_seqlens": bounds, "eps": 0.1}


def whole(case: ShardCase, x: Values) -> Whole:
    """By the specification of the unsharded call."""
    h, state = reference.mlstm(*x.tokens, **options(case, x), return_state=True)
    assert isinstance(state, MLSTMState)
    return Whole(h, state, reference.mlstm_backward(*x.tokens, **options(case, x), dh=x.dh, dstate=x.dstate))


def difference(case: ShardCase, got: Whole, expected: Whole, tolerance: float = 1e-10) -> str | None:
    """The first result that is not that of the whole, in words; None if all are. h and gradients are whole arrays.

    Gradients are compared relative to the largest of the tokens', to which they may cancel. That of the forget gate of
    a hard reset, which no path crosses, must be exactly 0.
    """
    with np.errstate(all="ignore"):
        shift = np.nan_to_num(got.state.m - expected.state.m)
    in_units = np.exp(shift)
    C, n = in_units[..., None, None] * got.state.C, in_units[..., None] * got.state.n
    scale = max(np.abs(expected.gradients[name]).max(initial=1.0) for name in NAMES)
    pairs = {
        "h": (got.h, expected.h, 1.0),
        "m": (got.state.m, expected.state.m, 1.0),
        "C": (C, expected.state.C, 1.0),
        "n": (n, expected.state.n, 1.0),
        **{f"gradient of {name}": (got.gradients[name], expected.gradients[name], scale) for name in NAMES},
    }
    if case.given:
        triples = zip("Cnm", got.gradients["initial_state"], expected.gradients["initial_state"], strict=True)
        pairs |= {f"gradient of the initial {name}": (one, other, scale) for name, one, other in triples}
    for name, (one, other, size) in pairs.items():
        if one.shape != other.shape:
            return f"{name} has the shape {one.shape}, expected {other.shape}"
        if not np.allclose(one, other, rtol=tolerance, atol=tolerance * size):
            with np.errstate(all="ignore"):
                return f"{name} differs by {np.abs(one - other).max():.2g} of {np.abs(other).max():.2g}"
    if got.gradients["f"][np.isneginf(values(case).tokens[4])].any():
        return "gradient of f is not exactly 0 across a reset"
    return None


_TABLE = (
    ShardCase(9, (2, 5, 5), seed=1),
    ShardCase(10, (3, 5, 7), (0, 3, 3, 9, 10), seed=2),
    ShardCase(9, (3, 6), kind="resets", given=False, seed=3),
)
"""Cases that no run may miss: an empty shard and three combinations; sequences that begin at a border, cross two, and
are empty; resets."""


@st.composite
def shard_cases(draw: Any, limits: Limits) -> ShardCase:
    """Any number of shards and sequences, of any lengths."""
    if limits.pin:
        return _TABLE[PINS[limits.stratum].index(limits.pin)]
    steps = draw(st.integers(0, 14))
    cuts = tuple(sorted(draw(st.lists(st.integers(0, steps), max_size=5))))
    return draw(cases(st.just(steps), st.just(cuts)))


@st.composite
def cases(draw: Any, steps: st.SearchStrategy, cuts: st.SearchStrategy, packed: Any = None) -> ShardCase:
    """Cases with given steps and cuts, dense or packed.

    Args:
        packed: the number of sequences of a packing, 0 for dense ones; None for any.
    """
    steps = draw(steps)
    if packed is None:
        packed = draw(st.integers(0, 5))
    bounds = None
    if packed:
        inner = draw(st.lists(st.integers(0, steps), min_size=packed - 1, max_size=packed - 1))
        bounds = (0, *sorted(inner), steps)
    given, kind = draw(st.booleans()), draw(st.sampled_from(KINDS))
    return ShardCase(steps, draw(cuts), bounds, kind, given, seed=draw(SEEDS))
