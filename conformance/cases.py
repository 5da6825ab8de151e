"""What the laws are tried on: Hypothesis strategies for shapes, packings, gates, strides and cotangents.

A case is a handful of small numbers and words; its arrays are drawn from one integer seed by NumPy, so that shrinking a
case is quick and a failure can be told in a line. Shapes come in strata: ``small`` (S from 0 to 7), ``chunk`` (around
the lengths at which chunks end) and ``long`` (over a thousand steps, unless told otherwise), and every law sees all of
its strata. For a framework that compiles per shape they come from short tables, so that laws share compiled functions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.dtypes import HALF, Array, accumulation, array

STRATA = ("small", "chunk", "long")
SMALL_STEPS = (0, 1, 2, 3, 5, 7)
CHUNK_STEPS = (13, 31, 32, 33, 63, 64, 65, 97, 130)
LONG_STEPS = 1031
GATES = (
    "ordinary",
    "small",
    "remembering",
    "saturated",
    "resets",
    "closed",
    "large m",
    "low m",
    "extreme",
    "mixed",
)
COTANGENTS = ("dense", "output only", "state only", "one step")
SEEDS = st.integers(0, 2**16 - 1)


@dataclass(frozen=True)
class Plan:
    """What a strategy may draw: see the head of this module.

    Attributes:
        stratum: one of `STRATA`.
        eager: whether a new shape is cheap; otherwise shapes come from the tables.
        dtype: the dtype of the values, for tables that are shorter for some.
        max_steps: the longest sequence.
        layouts: how arrays may lie in memory.
    """

    stratum: str
    eager: bool
    dtype: str
    max_steps: int
    layouts: tuple[str, ...] = ("contiguous",)

    def steps(self) -> tuple[int, ...]:
        choice = {"small": SMALL_STEPS, "chunk": CHUNK_STEPS, "long": (min(LONG_STEPS, self.max_steps),)}[self.stratum]
        return tuple(S for S in choice if self.max_steps >= S) or (self.max_steps,)


def generator(seed: int, *salt: int) -> np.random.Generator:
    return np.random.default_rng([seed, *salt])


def _words(case: Any, hidden: Mapping[str, Any]) -> str:
    """The fields of a case that are not at their ordinary value, as words."""
    said = []
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name not in hidden or hidden[field.name] != value:
            said.append(
                f"{field.name.replace('_', ' ')} {value}" if isinstance(value, str) else f"{field.name}={value}"
            )
    return ", ".join(said)


# --- gates


def _gates(rng: np.random.Generator, regime: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Input and forget preactivations ``(B, S, N)`` of one regime."""
    i, f = rng.normal(size=shape), rng.normal(size=shape)
    if regime == "small":
        return 1e-3 * i, 1e-3 * f
    if regime == "remembering":
        return i - 1, 5 + f
    if regime == "saturated":
        return 8 * i, 15 * f
    if regime == "resets":
        f = np.where(rng.random(shape) < 0.15, -np.inf, np.where(rng.random(shape) < 0.2, np.inf, 1 + f))
        return np.where(rng.random(shape) < 0.2, -np.inf, i), f
    if regime == "closed":
        closed = rng.random(shape) < 0.7
        return np.where(closed, -np.inf, i), np.where(closed & (rng.random(shape) < 0.3), -np.inf, 1 + f)
    if regime == "large m":
        return 70 + 2 * i, 4 + f
    if regime == "low m":
        return i - 25, f - 4
    if regime == "extreme":
        values = np.array([1e4, -1e4, 0.0, 1.0, -30.0, 30.0])
        with_infinities = np.array([1e4, -1e4, np.inf, -np.inf, 2.0, 8.0])
        return rng.choice(values, shape), rng.choice(with_infinities, shape)
    return i, 1 + f


def gates(rng: np.random.Generator, regime: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Preactivations; ``mixed`` gives every lane (b, n) a regime of its own."""
    if regime != "mixed":
        return _gates(rng, regime, shape)
    i, f = np.empty(shape), np.empty(shape)
    for b, n in np.ndindex(shape[0], shape[2]):
        lane = GATES[int(rng.integers(len(GATES) - 1))]
        i[b, :, n], f[b, :, n] = (gate[0, :, 0] for gate in _gates(rng, lane, (1, shape[1], 1)))
    return i, f


def _cotangent(rng: np.random.Generator, name: str, shape: tuple[int, ...], pattern: str, output: str) -> np.ndarray:
    """A random cotangent: dense, or zero where ``pattern`` says."""
    d = rng.normal(size=shape)
    if (pattern == "output only" and name != output) or (pattern == "state only" and name == output):
        return 0 * d
    if pattern == "one step" and name == output and d.size:
        keep = int(rng.integers(shape[1]))
        d[:, :keep] = 0
        d[:, keep + 1 :] = 0
    return d


# --- mLSTM


@dataclass(frozen=True)
class MLSTMCase:
    """An mLSTM call.

    Attributes:
        B, S, N, K, V: sizes; for packed calls B and S follow from ``lengths``.
        lengths: of packed sequences, None for a dense call.
        state: ``none``, ``random``, or ``empty`` (C = n = 0, m = −∞).
        gates: a regime of `GATES`.
        scale: magnitude of q, k, v.
        cotangents: a pattern of `COTANGENTS`.
        chunk_size, eps: the call's.
        wide_gates: float32 gates beside 16-bit values.
        cut: where laws that cut a sequence do so, as a share of S.
        layout: of every array.
        seed: of every value.
    """

    B: int
    S: int
    N: int
    K: int
    V: int
    lengths: tuple[int, ...] | None = None
    state: str = "none"
    gates: str = "ordinary"
    scale: float = 1.0
    cotangents: str = "dense"
    chunk_size: int | None = None
    eps: float = 0.0
    wide_gates: bool = False
    cut: float = 0.5
    layout: str = "contiguous"
    seed: int = 0

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def steps(self) -> int:
        return self.S if self.lengths is None else max(self.lengths, default=0)

    @property
    def size(self) -> int:
        tokens = self.B * self.S if self.lengths is None else sum(self.lengths)
        return (tokens + 1) * self.N * (self.K + self.V) + self.steps

    def describe(self) -> str:
        said = _words(self, {**_MLSTM_ORDINARY, **({"B": self.B, "S": self.S} if self.packed else {})})
        return said

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.chunk_size is not None:
            options["chunk_size"] = self.chunk_size
        if self.eps:
            options["eps"] = self.eps
        return options

    def _tokens(self) -> tuple[int, ...]:
        return (self.B, self.S) if self.lengths is None else (1, sum(self.lengths))

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 1)
        lead, (N, K, V) = self._tokens(), (self.N, self.K, self.V)
        B = self.B if self.lengths is None else len(self.lengths)
        i, f = gates(rng, self.gates, (*lead, N))
        raw = {
            "q": self.scale * rng.normal(size=(*lead, N, K)),
            "k": self.scale * rng.normal(size=(*lead, N, K)),
            "v": self.scale * rng.normal(size=(*lead, N, V)),
            "i": i,
            "f": f,
        }
        if self.lengths is not None:
            raw = {name: x[0] for name, x in raw.items()}
        gate_dtype = "float32" if self.wide_gates and dtype in HALF else dtype
        arrays = {name: array(x, gate_dtype if name in "if" else dtype, self.layout) for name, x in raw.items()}
        wide = accumulation(dtype)
        if self.state == "random":
            m0 = rng.normal(size=(B, N)) + (70 if self.gates == "large m" else 0)
            state = {"C0": rng.normal(size=(B, N, K, V)), "n0": rng.normal(size=(B, N, K)), "m0": m0}
            arrays |= {name: array(x, wide, self.layout) for name, x in state.items()}
        elif self.state == "empty":
            state = {"C0": np.zeros((B, N, K, V)), "n0": np.zeros((B, N, K)), "m0": np.full((B, N), -np.inf)}
            arrays |= {name: array(x, wide, self.layout) for name, x in state.items()}
        if self.lengths is not None:
            arrays["cu_seqlens"] = array(np.cumsum([0, *self.lengths]), "int32")
        return arrays

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 2)
        B = self.B if self.lengths is None else len(self.lengths)
        N, K, V = self.N, self.K, self.V
        shapes = {"h": (*self._tokens(), N, V), "C": (B, N, K, V), "n": (B, N, K), "m": (B, N)}
        raw = {name: _cotangent(rng, name, shape, self.cotangents, "h") for name, shape in shapes.items()}
        if self.lengths is not None:
            raw["h"] = raw["h"][0]
        wide = accumulation(dtype)
        return {name: array(x, dtype if name == "h" else wide) for name, x in raw.items()}


_MLSTM_ORDINARY = {
    "lengths": None,
    "state": "none",
    "scale": 1.0,
    "cotangents": "dense",
    "chunk_size": None,
    "eps": 0.0,
    "wide_gates": False,
    "cut": 0.5,
    "layout": "contiguous",
}

# (B, S, N, K, V, state) per stratum: what a compiled target is tried on. float32 sees all rows, other dtypes the first.
_MLSTM_TABLE = {
    "small": ((2, 5, 3, 3, 2, True), (2, 0, 1, 3, 2, True), (1, 1, 1, 1, 1, True)),
    "chunk": ((1, 65, 2, 5, 3, True), (2, 130, 1, 3, 5, False)),
    "long": ((1, LONG_STEPS, 1, 4, 3, True),),
}
_PACKED_TABLE = {
    "small": ((4, 9, 2, 3, 2),),
    "chunk": ((3, 150, 1, 5, 3),),
    "long": ((3, LONG_STEPS, 1, 4, 3),),
}


def _rows(table: Mapping[str, tuple], plan: Plan) -> st.SearchStrategy:
    rows = table[plan.stratum]
    return st.sampled_from(rows if plan.dtype == "float32" else rows[:1])


def _limited(S: int, plan: Plan) -> int:
    return min(S, plan.max_steps)


@st.composite
def _dynamic(draw: Any, plan: Plan, state: bool) -> dict[str, Any]:
    """The fields that change no shape."""
    regimes = GATES if plan.stratum != "long" else ("remembering", "ordinary", "mixed", "resets")
    return {
        "state": draw(st.sampled_from(("random", "empty"))) if state else "none",
        "gates": draw(st.sampled_from(regimes)),
        "scale": draw(st.sampled_from((1.0, 1.0, 0.01, 4.0))),
        "cotangents": draw(st.sampled_from(COTANGENTS)),
        "layout": draw(st.sampled_from(plan.layouts)),
        "seed": draw(SEEDS),
    }


@st.composite
def mlstm(draw: Any, plan: Plan, **fixed: Any) -> MLSTMCase:
    """A dense mLSTM call; ``fixed`` pins fields."""
    if plan.eager:
        if plan.stratum == "long":
            B, N, K, V = 1, draw(st.sampled_from((1, 2))), draw(st.sampled_from((4, 7))), draw(st.sampled_from((3, 5)))
        else:
            B, N = draw(st.sampled_from((1, 2, 3, 0))), draw(st.sampled_from((1, 2, 3)))
            K, V = draw(st.sampled_from((1, 3, 5, 8, 17))), draw(st.sampled_from((1, 2, 5, 11)))
        S, state = draw(st.sampled_from(plan.steps())), draw(st.booleans())
        eps = draw(st.sampled_from((0.0, 0.0, 0.0, 1e-3)))
        wide_gates = plan.dtype in HALF and draw(st.booleans())
    else:
        B, S, N, K, V, state = draw(_rows(_MLSTM_TABLE, plan))
        S, eps, wide_gates = _limited(S, plan), 0.0, plan.dtype in HALF
    case = MLSTMCase(B, S, N, K, V, eps=eps, wide_gates=wide_gates, **draw(_dynamic(plan, state)))
    return replace(case, **fixed)


def _lengths(draw: Any, B: int, T: int) -> tuple[int, ...]:
    """``B`` lengths with sum ``T``, often with empty sequences, from cut points that shrink to 0."""
    if B == 0:
        return ()
    cuts = sorted(draw(st.lists(st.integers(0, T), min_size=B - 1, max_size=B - 1)))
    if B >= 3 and draw(st.booleans()):
        cuts[-1] = cuts[-2]
    return tuple(int(n) for n in np.diff([0, *cuts, T]))


@st.composite
def packed_mlstm(draw: Any, plan: Plan, **fixed: Any) -> MLSTMCase:
    """A packed mLSTM call, empty sequences included."""
    if plan.eager:
        B = draw(st.sampled_from((3, 1, 2, 5, 0)))
        T = 0 if B == 0 else draw(st.sampled_from(plan.steps()))
        N, K, V = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 3, 8))), draw(st.sampled_from((2, 5)))
        state = draw(st.booleans())
    else:
        B, T, N, K, V = draw(_rows(_PACKED_TABLE, plan))
        T, state = _limited(T, plan), True
    lengths = _lengths(draw, B, T)
    case = MLSTMCase(B, 0, N, K, V, lengths=lengths, wide_gates=plan.dtype in HALF, **draw(_dynamic(plan, state)))
    return replace(case, **fixed)


# --- fwbw


@dataclass(frozen=True)
class FwbwCase:
    """A call in the layout of the fwbw interface: an `MLSTMCase` of one head, and the configuration."""

    inner: MLSTMCase
    chunk_size: int | None = 512
    return_state: bool = False
    use_initial_state: bool = False
    stabilize_correctly: bool = False
    keep: tuple[str, ...] = ("keep_gates",)
    flat_gates: bool = True

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def steps(self) -> int:
        return self.inner.S

    def describe(self) -> str:
        return f"{self.inner.describe()}; config {self.config()}{'' if self.flat_gates else '; gates (B, T, 1)'}"

    def config(self) -> dict[str, Any]:
        names = ("chunk_size", "return_state", "use_initial_state", "stabilize_correctly")
        config = {name: getattr(self, name) for name in names}
        return {**config, **{name: name in self.keep for name in ("keep_G", "keep_gates", "keep_M", "keep_c")}}

    def arrays(self, dtype: str) -> dict[str, Array]:
        arrays = self.inner.arrays(dtype)
        if not self.use_initial_state:
            arrays = {name: x for name, x in arrays.items() if name not in ("C0", "n0", "m0")}
        return {name: self._headless(name, x) for name, x in arrays.items()}

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        cotangents = self.inner.cotangent_arrays(dtype)
        names = "hCnm" if self.return_state else "h"
        return {name: self._headless(name, cotangents[name]) for name in names}

    def _headless(self, name: str, x: Array) -> Array:
        if name in "if":
            return replace(x, values=x.values[:, :, 0] if self.flat_gates else x.values)
        return replace(x, values=x.values[:, :, 0] if name in (*"qkv", "h") else x.values[:, 0])


@st.composite
def fwbw(draw: Any, plan: Plan, **fixed: Any) -> FwbwCase:
    inner = draw(mlstm(plan, N=1, eps=0.0))
    states = inner.state != "none"
    if plan.eager:
        chunks = (512, None, 1, 7, 16, 64)
        if plan.stratum == "long":
            chunks = (64, 100)
        keep = tuple(name for name in ("keep_gates", "keep_G", "keep_M", "keep_c") if draw(st.booleans()))
        options: dict[str, Any] = {
            "chunk_size": draw(st.sampled_from(chunks)),
            "return_state": draw(st.booleans()),
            "use_initial_state": states,
            "stabilize_correctly": draw(st.booleans()),
            "keep": keep,
            "flat_gates": draw(st.booleans()),
        }
    else:
        correct = plan.stratum != "small"
        keep = ("keep_G", "keep_M") if plan.stratum == "small" else ("keep_gates", "keep_c")
        options = {
            "chunk_size": 7 if correct else 2,
            "return_state": True,
            "use_initial_state": states,
            "stabilize_correctly": correct,
            "keep": keep,
            "flat_gates": not correct,
        }
    return replace(FwbwCase(inner, **options), **fixed)


# --- GRU


GRU_GATES = ("ordinary", "small", "remembering", "saturated", "closed", "extreme")


@dataclass(frozen=True)
class GRUCase:
    """A GRU call.

    Attributes:
        B, S, H: sizes; for packed calls B and S follow from ``lengths``.
        heads: the six head counts in the order of the arguments (input, weight, forget input, ...).
        lengths: of packed sequences, None for a dense call.
        state: whether an initial state is given.
        gates: a regime of `GRU_GATES`, for the forget and reset preactivations.
        scale: magnitude of inputs and weights.
        clipping: the call's.
        cotangents: a pattern of `COTANGENTS`.
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
    cotangents: str = "dense"
    cut: float = 0.5
    layout: str = "contiguous"
    seed: int = 0

    @property
    def N(self) -> int:
        return max(self.heads)

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def steps(self) -> int:
        return self.S if self.lengths is None else max(self.lengths, default=0)

    @property
    def size(self) -> int:
        tokens = self.B * self.S if self.lengths is None else sum(self.lengths)
        return (tokens + 1) * sum(self.heads) * self.H + self.steps

    def describe(self) -> str:
        return _words(self, {**_GRU_ORDINARY, **({"B": self.B, "S": self.S} if self.packed else {})})

    def options(self) -> dict[str, Any]:
        return {} if self.clipping is None else {"gradient_clipping": self.clipping}

    def _tokens(self) -> tuple[int, ...]:
        return (self.B, self.S) if self.lengths is None else (1, sum(self.lengths))

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 3)
        H, lead = self.H, self._tokens()
        Nx, Nw, Nxf, Nwf, Nxr, Nwr = self.heads
        forget, reset = self._preactivations(rng, (*lead, Nxf, H)), self._preactivations(rng, (*lead, Nxr, H))
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
        arrays = {name: array(x, dtype, self.layout) for name, x in raw.items()}
        B = self.B if self.lengths is None else len(self.lengths)
        if self.state:
            h0 = rng.normal(size=(B, self.N, H))
            arrays["input_state"] = array(h0, accumulation(dtype), self.layout)
        if self.lengths is not None:
            arrays["cu_seqlens"] = array(np.cumsum([0, *self.lengths]), "int32")
        return arrays

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

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 4)
        B = self.B if self.lengths is None else len(self.lengths)
        shapes = {"y": (*self._tokens(), self.N, self.H), "state": (B, self.N, self.H)}
        raw = {name: _cotangent(rng, name, shape, self.cotangents, "y") for name, shape in shapes.items()}
        if self.lengths is not None:
            raw["y"] = raw["y"][0]
        return {name: array(x, dtype if name == "y" else accumulation(dtype)) for name, x in raw.items()}


_GRU_ORDINARY = {
    "lengths": None,
    "state": False,
    "scale": 1.0,
    "clipping": None,
    "cotangents": "dense",
    "cut": 0.5,
    "layout": "contiguous",
}
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
    "small": ((2, 5, 3, HEADS[0], True, 0.5), (3, 5, 2, HEADS[2], False, None), (2, 0, 3, HEADS[1], True, 0.1)),
    "chunk": ((2, 65, 3, HEADS[0], True, None), (1, 97, 5, HEADS[3], True, 0.1)),
    "long": ((1, LONG_STEPS, 4, HEADS[4], True, None),),
}
_PACKED_GRU_TABLE = {
    "small": ((4, 9, 3, HEADS[0], 0.5),),
    "chunk": ((3, 150, 2, HEADS[2], None),),
    "long": ((3, LONG_STEPS, 3, HEADS[1], None),),
}


@st.composite
def _gru_dynamic(draw: Any, plan: Plan) -> dict[str, Any]:
    regimes = GRU_GATES if plan.stratum != "long" else ("remembering", "ordinary")
    return {
        "gates": draw(st.sampled_from(regimes)),
        "scale": draw(st.sampled_from((1.0, 1.0, 0.01, 2.0))),
        "cotangents": draw(st.sampled_from(COTANGENTS)),
        "layout": draw(st.sampled_from(plan.layouts)),
        "seed": draw(SEEDS),
    }


@st.composite
def gru(draw: Any, plan: Plan, **fixed: Any) -> GRUCase:
    if plan.eager:
        B = 1 if plan.stratum == "long" else draw(st.sampled_from((2, 1, 3, 0)))
        S, H = draw(st.sampled_from(plan.steps())), draw(st.sampled_from((3, 1, 2, 5)))
        heads, state = draw(st.sampled_from(HEADS)), draw(st.booleans())
        clipping = draw(st.sampled_from((None, 0.1, -0.5, 2.0)))
    else:
        B, S, H, heads, state, clipping = draw(_rows(_GRU_TABLE, plan))
        S = _limited(S, plan)
    case = GRUCase(B, S, H, heads, state=state, clipping=clipping, **draw(_gru_dynamic(plan)))
    return replace(case, **fixed)


@st.composite
def packed_gru(draw: Any, plan: Plan, **fixed: Any) -> GRUCase:
    if plan.eager:
        B = draw(st.sampled_from((3, 1, 2, 5, 0)))
        T = 0 if B == 0 else draw(st.sampled_from(plan.steps()))
        H, heads, state = draw(st.sampled_from((3, 1, 2))), draw(st.sampled_from(HEADS)), draw(st.booleans())
        clipping = draw(st.sampled_from((None, 0.1)))
    else:
        B, T, H, heads, clipping = draw(_rows(_PACKED_GRU_TABLE, plan))
        T, state = _limited(T, plan), True
    case = GRUCase(
        B,
        0,
        H,
        heads,
        lengths=_lengths(draw, B, T),
        state=state,
        clipping=clipping,
        **draw(_gru_dynamic(plan)),
    )
    return replace(case, **fixed)


# --- scans and decay


@dataclass(frozen=True)
class SumCase:
    """A call of a scan or of a decay matrix.

    Attributes:
        lead: leading axes.
        S: steps, the last axis.
        values: ``ordinary``, ``same sign`` (sums grow like S), ``wide`` (magnitudes from 1e-4 to 1e4), and for gates
            also ``resets`` (−∞ among them) and ``extreme``.
    """

    lead: tuple[int, ...]
    S: int
    values: str = "ordinary"
    layout: str = "contiguous"
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.S

    @property
    def size(self) -> int:
        return math.prod(self.lead) * self.S + self.S

    def describe(self) -> str:
        return _words(self, {"layout": "contiguous"})

    def draw(self, salt: int) -> np.ndarray:
        rng, shape = generator(self.seed, salt), (*self.lead, self.S)
        x = rng.normal(size=shape)
        if self.values == "same sign":
            return np.abs(x)
        if self.values == "wide":
            return x * 10.0 ** rng.integers(-3, 4, shape)
        return x

    def scan(self, dtype: str) -> dict[str, Array]:
        return {"x": array(self.draw(5), dtype, self.layout)}

    def log_gates(self, dtype: str) -> dict[str, Array]:
        a = -np.abs(self.draw(6))
        if self.values in ("resets", "extreme"):
            a = np.where(generator(self.seed, 7).random(a.shape) < 0.2, -np.inf, a)
        return {"forget_gates": array(a, dtype, self.layout)}

    def preactivations(self, dtype: str) -> dict[str, Array]:
        i, f = self.draw(8), self.draw(9)
        rng = generator(self.seed, 10)
        if self.values == "resets":
            f = np.where(rng.random(f.shape) < 0.2, -np.inf, np.where(rng.random(f.shape) < 0.2, np.inf, f))
        if self.values == "extreme":
            f = rng.choice(np.array([1e4, -1e4, np.inf, -np.inf, 30.0]), f.shape)
            i = rng.choice(np.array([1e4, -1e4, 0.0, -np.inf]), i.shape)
        return {
            "igate": array(i[..., None], dtype, self.layout),
            "fgate": array(f[..., None], dtype, self.layout),
        }

    def cotangent(self, dtype: str, *, square: bool) -> dict[str, Array]:
        shape = (*self.lead, self.S, self.S) if square else (*self.lead, self.S)
        return {"y": array(generator(self.seed, 11).normal(size=shape), dtype)}


_SUM_TABLE = {
    "small": (((2, 3), 5), ((2,), 0)),
    "chunk": (((2,), 65),),
    "long": (((2,), LONG_STEPS),),
}


@st.composite
def sums(draw: Any, plan: Plan, values: tuple[str, ...] = ("ordinary", "same sign", "wide"), **fixed: Any) -> SumCase:
    if plan.eager:
        lead = draw(st.sampled_from(((2,), (), (2, 3), (0,), (1, 1, 2)))) if plan.stratum != "long" else (2,)
        S = draw(st.sampled_from(plan.steps()))
    else:
        lead, S = draw(_rows(_SUM_TABLE, plan))
        S = _limited(S, plan)
    layout = draw(st.sampled_from(plan.layouts))
    return replace(SumCase(lead, S, draw(st.sampled_from(values)), layout, draw(SEEDS)), **fixed)


def gate_sums(plan: Plan) -> st.SearchStrategy:
    return sums(plan, ("ordinary", "resets", "wide", "extreme"))
