"""Calls of a stated recurrence, dense and packed; each recurrence has a class with a field for each size and option."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from itertools import cycle, islice, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import Array, accumulation, array
from conformance.cases._case import (
    AS_DRAWN,
    LONG_STEPS,
    PINS,
    STRATA,
    USUAL,
    Limits,
    Sequences,
    cotangent,
    cotangent_scale,
    dynamic,
    finite_in,
    from_json,
    generator,
    lengths_of,
    limited,
    register,
    replaced,
    to_json,
)
from conformance.cases._gates import gates, hold, moderate, moderate_gates
from conformance.cases._usual import BATCHES, HEADS, PACKED, STEPS, Sizes
from conformance.cases._usual import lengths_of as usual_lengths
from conformance.specification.recurrence import Given, Recurrence

GATES = ("ordinary", "small", "remembering", "saturated", "closed", "resets", "extreme")
FEATURES = (256, 128, 127, 96, 65, 64, 32, 16)
"""Usual sizes of every letter that counts neither sequences, steps nor heads."""
SERVED = (2, 1, 4, 16, 1, 8)
"""The numbers of heads that a shared one serves, in turn; all heads if there are fewer."""
EXPONENTIAL_SHIFT = 2.0
"""Exponential forget gates are lower than sigmoid ones by this: around 0, at which they keep a memory."""
HELD_SHIFT = 7.0
LARGE_M = 70.0
"""What the regime ``large m`` adds to the logarithm of the unit of an initial memory."""
OPTION = "with_"
"""What the name of an option has before it as the name of a field."""
COST = 0.5
"""What the product of the sizes of the largest array counts at each step: a row takes the oracle about a second."""
SMALL_FEATURES = (3, 1, 2, 5)
SMALL_HEADS = (4, 1, 2, 6)


@dataclass(frozen=True, kw_only=True)
class RecurrenceCase(Sequences):
    """A call of a stated recurrence; its class has the sizes and options of that one, too.

    Attributes:
        B, S: sizes; for packed calls they follow from ``lengths``.
        lengths: lengths of packed sequences; None for a dense call.
        serves: how many heads each head of a grouped array serves, in the order of `Recurrence.grouped`.
        state: whether initial states are given.
        empty: whether these are empty, as if none were given.
        left_out: the optional arrays that are not given.
        gates: a regime of `GATES` for gates and log decays; of `conformance.cases.GATES` if there is an input gate.
        held: with an input gate, the share of a sequence before the regime starts; until then the gates keep the
            initial memory.
        scale: magnitude of values and weights; vectors of a given length are half as long at least, and no longer.
        cotangents, cotangent_scale: a pattern of `COTANGENTS`, and the magnitude of its elements.
        removed: properties that were removed from the gates.
        wide_gates: whether gates and log decays are in the accumulation dtype.
        elements: the elements of every array, ``as drawn`` or one of `conformance.cases._case.SIMPLE`.
        return_state: whether the final states are returned, if a call says so; only then they have cotangents.
    """

    B: int
    S: int
    lengths: tuple[int, ...] | None = None
    serves: tuple[int, ...] = ()
    state: bool = False
    empty: bool = False
    left_out: tuple[str, ...] = ()
    gates: str = "ordinary"
    held: float = 0.0
    scale: float = 1.0
    room: int | None = None
    cotangents: str = "dense"
    cotangent_scale: float = 1.0
    cut: float = 0.5
    layout: str = "contiguous"
    removed: tuple[str, ...] = ()
    seed: int = 0
    elements: str = AS_DRAWN
    wide_gates: bool = False
    return_state: bool = True

    def _stated(self) -> Recurrence:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        """A case is pickled as in JSON, because its class is made where the recurrence is stated."""
        return from_json, (to_json(self),)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every letter."""
        stated = self._stated()
        found = {letter: getattr(self, letter) for letter in letters_of(stated)}
        grouped = dict(zip(stated.grouped, self.serves or (1,) * len(stated.grouped), strict=True))
        heads = {letter: found["N"] // max(1, math.gcd(found["N"], each)) for letter, each in grouped.items()}
        given = [each.letters for name, each in stated.inputs.items() if name not in self.left_out]
        own = [letter for letter in stated.grouped if any(letter in letters for letters in given)]
        if own and not any("N" in letters for letters in given) and max(map(heads.__getitem__, own)) < found["N"]:
            # N is the largest of the numbers of heads.
            heads[own[sum(self.serves) % len(own)]] = found["N"]
        return {"B": self.sequences, "S": self.steps, **found, **heads}

    @property
    def size(self) -> int:
        grouped = self._stated().grouped
        own = (size for letter, size in self.sizes.items() if letter not in ("B", "S", *grouped))
        heads = sum(self.sizes[letter] for letter in grouped) or 1
        return (math.prod(self.tokens) + 1) * math.prod(own) * heads + self.steps

    def options(self) -> dict[str, Any]:
        given = self._own_options()
        if self.room is not None:
            given["max_seqlen"] = self.steps + self.room
        return given if self.return_state else {**given, "return_state": False}

    def _own_options(self) -> dict[str, Any]:
        """Those of the recurrence that do not have their default value."""
        options = self._stated().options.items()
        return {name: x for name, values in options if (x := getattr(self, OPTION + name)) != values[0]}

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng, stated = generator(self.seed, 5), self._stated()
        together = {} if stated.stabilised is None else self._two_gates(rng, stated.stabilised)
        found = {}
        for name, given in stated.arguments.items():
            x = finite_in(together[name], dtype) if name in together else self._drawn(rng, given)
            if given.stepped and self.packed:
                x = x[0]
            if name in self.left_out or (given.role == "state" and not self.state):
                continue
            if given.only_with and not getattr(self, OPTION + given.only_with):
                continue
            wide = given.role == "state" or (given.gates and self.wide_gates)
            found[name] = array(x, accumulation(dtype) if wide else dtype, self.layout)
        if self.lengths is not None:
            found["cu_seqlens"] = array(np.cumsum([0, *self.lengths]), "int32")
        return found

    def _drawn(self, rng: np.random.Generator, given: Given) -> np.ndarray:
        shape = self._shape(given.shape)
        if given.gates:
            x = self._moderated(_gate(rng, given, self.gates, shape))
            return np.clip(replaced(x, self.elements), given.low, given.high)
        x = replaced(rng.normal(size=shape), self.elements)
        if given.role == "state":
            return self._state(x, given)
        if given.length is not None:
            lengths = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
            share = rng.uniform(0.5, 1.0, lengths.shape)
            return min(self.scale, 1.0) * given.length * share * x / np.where(lengths > 0, lengths, 1.0)
        return min(self.scale, 1.0) * x / math.sqrt(max(shape[-1], 1)) if given.weight else self.scale * x

    def _state(self, x: np.ndarray, given: Given) -> np.ndarray:
        if self.empty:
            return np.full(x.shape, given.empty)
        if given.final in self._stated().log_scales.values():
            x = x + (LARGE_M if self.gates == "large m" else 0)
            return moderate(x) if "large input gates" in self.removed else x
        return x if math.isinf(given.low) else given.low + np.abs(x)

    def _two_gates(self, rng: np.random.Generator, names: tuple[str, str]) -> dict[str, np.ndarray]:
        """The input gate and the forget gate, of which a regime says how they go together."""
        given = self._stated().arguments
        shape, exponential = self._shape(given[names[0]].shape), False
        if (condition := given[names[1]].exponential_with) is not None:
            option, value = condition
            exponential = getattr(self, OPTION + option) == value
        i, f = gates(rng, self.gates, (*self.tokens, math.prod(shape[2:])))
        if exponential:
            f = np.where(np.isposinf(f), 0.0, f - EXPONENTIAL_SHIFT)
        ends = np.cumsum([0, *self.lengths]).tolist() if self.lengths is not None else [0, self.S]
        parts = [slice(start, start + math.ceil(self.held * (end - start))) for start, end in pairwise(ends)]
        hold(rng, i, f, parts)
        if exponential:
            for part in parts:
                f[:, part] -= HELD_SHIFT
        i, f = moderate_gates(i, f, self.removed)
        if self.elements != AS_DRAWN:
            # No gate is 0: log σ has a kink there for the tape.
            i, f = (np.where(np.abs(x) < 1, np.sign(x), x) for x in (i, f))
        return {name: replaced(x.reshape(shape), self.elements) for name, x in zip(names, (i, f), strict=True)}

    def _moderated(self, x: np.ndarray) -> np.ndarray:
        if "infinite gates" in self.removed:
            x = np.where(np.isinf(x), np.sign(x) * 5.0, x)
        return moderate(x) if "large gates" in self.removed else x

    def _shape(self, shape: str) -> tuple[int, ...]:
        sizes = self.sizes
        lead = {"B": self.tokens[0], "S": self.tokens[1]} if "S" in shape.split() else {}
        return tuple({**sizes, **lead}[letter] for letter in shape.split())

    def cotangent_arrays(self, dtype: str) -> dict[str, Array]:
        stated = self._stated()
        rng, found, scale = generator(self.seed, 6), {}, cotangent_scale(self, dtype)
        first = next(iter(stated.shapes))
        for name, shape in stated.shapes.items():
            d = cotangent(rng, first if name in stated.outputs else name, self._shape(shape), self.cotangents, first)
            d = scale * replaced(d, self.elements)
            d = d[0] if self.packed and "S" in shape.split() else d
            if name in stated.states and not self.return_state:
                continue
            if name in stated.log_scales.values():
                d = np.where(self._written(name, dtype), d, 0.0)
            found[name] = array(d, accumulation(dtype) if name in stated.states else dtype)
        return found

    def _written(self, m: str, dtype: str) -> np.ndarray | bool:
        """Where a final memory holds anything: nothing attains the logarithm of the unit of an empty one, which is −∞.

        Args:
            m: the name of that logarithm.
        """
        stated, arrays = self._stated(), {name: x.values for name, x in self.arrays(dtype).items()}
        everywhere = stated.stabilised is None or np.isfinite(arrays[stated.stabilised[0]]).all()
        if self.state and not self.empty and everywhere:
            return True
        with np.errstate(all="ignore"):
            return ~np.isneginf(stated.called(stated.right[0](), arrays, self._own_options())[m])


def _gate(rng: np.random.Generator, given: Given, regime: str, shape: tuple[int, ...]) -> np.ndarray:
    """A gate in its range, or a log decay, of one regime."""
    x = rng.normal(size=shape)
    if given.role == "gate" and math.isfinite(given.low) and math.isfinite(given.high):
        ends = {"small": (0.0, 1e-3), "remembering": (0.4, 0.6), "closed": (0.0, 0.05)}
        low, high = ends.get(regime, (0.0, 1.0))
        share = low + (high - low) * rng.random(shape)
        if regime in ("extreme", "saturated"):
            share = rng.choice(np.array([0.0, 1.0, 0.5]), shape)
        return given.low + (given.high - given.low) * share
    decays = given.role == "log decay"
    if regime == "small":
        return np.clip(1e-3 * x, given.low, given.high)
    if regime == "remembering":
        x = np.log1p(np.exp(x)) * -0.05 if decays else x + 8 * given.keeps
    elif regime == "saturated":
        x = -np.abs(15 * x) if decays else 15 * x
    elif regime == "closed":
        x = x - 8
    elif regime == "extreme":
        values = [-np.inf, -1e4, -30.0, -1e-3, 0.0] if decays else [np.inf, -np.inf, 1e4, -1e4, 0.0, 30.0]
        x = rng.choice(np.array(values), shape)
    elif decays:
        x = -np.log1p(np.exp(-1 - x))
        if regime == "resets":
            x = np.where(rng.random(shape) < 0.15, -np.inf, x)
    return np.clip(x, given.low, given.high)


def letters_of(stated: Recurrence) -> tuple[str, ...]:
    """The letters of a recurrence's own sizes: all but those of sequences, steps and grouped heads."""
    shapes = (*(given.shape for given in stated.arguments.values()), *stated.outputs.values())
    letters = dict.fromkeys(letter for shape in shapes for letter in shape.split())
    return tuple(letter for letter in letters if letter not in ("B", "S", *stated.grouped))


@dataclass(frozen=True, eq=False)
class RecurrenceCases:
    """The class of a recurrence's cases, and how they are drawn.

    Attributes:
        recurrence: the recurrence.
        kind: the class.
    """

    recurrence: Recurrence
    kind: type[RecurrenceCase] = field(init=False)

    def __post_init__(self) -> None:
        stated = self.recurrence
        sizes = [(letter, int, field(default=2 if letter == "N" else 3)) for letter in letters_of(stated)]
        options = [(OPTION + name, Any, field(default=values[0])) for name, values in stated.options.items()]
        name = f"{stated.name}Case"
        namespace = {"_stated": lambda case: stated, "__module__": __name__}
        made = make_dataclass(
            name, [*sizes, *options], bases=(RecurrenceCase,), frozen=True, kw_only=True, namespace=namespace
        )
        object.__setattr__(self, "kind", register(instead=True)(made))

    @property
    def letters(self) -> tuple[str, ...]:
        return letters_of(self.recurrence)

    @property
    def serves(self) -> tuple[int, ...]:
        """How many heads each head of a grouped array serves, in a case with shared heads."""
        return tuple(islice(cycle(SERVED), len(self.recurrence.grouped)))

    @property
    def features(self) -> tuple[str, ...]:
        """The letters that count features or units."""
        return tuple(letter for letter in self.letters if letter != "N")

    def usual(self, packed: bool) -> Sizes:
        """Its usual sizes; two letters of features have unequal values too."""
        of_features = dict.fromkeys(self.features, FEATURES)
        heads = {"N": HEADS} if "N" in self.letters else {}
        order = {**of_features, **heads}
        shapes = (*(given.shape for given in self.recurrence.arguments.values()), *self.recurrence.outputs.values())
        all_of = [[letter for letter in shape.split() if letter not in ("B", "S")] for shape in shapes]

        def work(of: Mapping[str, Any]) -> int:
            tokens = sum(usual_lengths(of["B"], of["S"])) if packed else of["B"] * of["S"]
            return int(
                COST * tokens * max(math.prod(of.get(letter, of.get("N", 1)) for letter in each) for each in all_of)
            )

        values: dict[str, tuple[Any, ...]] = {"B": PACKED if packed else BATCHES, **order, "S": STEPS}
        return Sizes(values, work)

    def dense(self, limits: Limits, **fixed: Any) -> st.SearchStrategy:
        return _case(limits, of=self, packed=False, fixed=fixed)

    def packed(self, limits: Limits, **fixed: Any) -> st.SearchStrategy:
        return _case(limits, of=self, packed=True, fixed=fixed)

    def halved(self, limits: Limits) -> st.SearchStrategy:
        """Cases of an even number of steps, whose halves are few shapes."""
        if limits.stratum == USUAL:
            return self.dense(limits)
        return self.dense(limits).map(lambda case: replace(case, S=min(2 * case.S, limits.max_steps)))

    def extremes(self, limits: Limits, **fixed: Any) -> st.SearchStrategy:
        of_two = ("closed", "resets") if self.recurrence.stabilised else ()
        return st.one_of(*(self.dense(limits, gates=gates, **fixed) for gates in ("extreme", "saturated", *of_two)))


_COMPILED = {"small": (2, 5), "chunk": (2, 65), "long": (1, LONG_STEPS)}
_COMPILED_PACKED = {"small": (4, 9), "chunk": (3, 150), "long": (3, LONG_STEPS)}


def _turn(limits: Limits) -> int:
    """A number that differs from one pinned case, row of usual sizes or compiled stratum to the next."""
    if limits.row is not None:
        return limits.row
    at = STRATA.index(limits.stratum) if limits.stratum in STRATA else 0
    return 3 * at + (PINS[limits.stratum].index(limits.pin) if limits.pin in PINS.get(limits.stratum, ()) else 1)


@st.composite
def _case(draw: Any, limits: Limits, of: RecurrenceCases, packed: bool, fixed: Mapping[str, Any]) -> Any:
    stated, any_of, turn = of.recurrence, lambda values: draw(st.sampled_from(values)), _turn(limits)
    state = True
    of_any = stated.drawn(limits.eager)
    options = {OPTION + name: values[(turn + n) % len(values)] for n, (name, values) in enumerate(of_any.items())}
    grouped, spare = len(stated.grouped), [name for name, given in stated.arguments.items() if _spare(given)]
    if limits.stratum == USUAL:
        sizes = draw(of.usual(packed).drawn(limits))
        B, S = sizes["B"], limited(sizes["S"], limits)
        own = {letter: sizes[letter] for letter in of.letters}
        lengths = usual_lengths(B, S) if packed else None
    elif limits.eager:
        choice = ((3, 2), (3, 1, 2, 5, 0)) if packed else ((2, 3), (2, 1, 3, 0))
        B = 1 if limits.stratum == "long" and not packed else any_of(choice[not limits.pin])
        S = any_of(limits.steps())
        own = {letter: any_of(SMALL_FEATURES) for letter in of.features}
        own |= {"N": any_of(SMALL_HEADS)} if "N" in of.letters else {}
        state = bool(limits.pin) or draw(st.booleans())
        if not limits.pin:
            options = {OPTION + name: any_of((values[0], *values)) for name, values in of_any.items()}
        lengths = lengths_of(draw, B, S if B else 0, limits) if packed else None
    else:
        B, S = (_COMPILED_PACKED if packed else _COMPILED)[limits.stratum]
        # Each of these is a program of its own.
        several = limits.stratum == "small" and limits.dtype == "float32" and not packed
        bare = several and draw(st.booleans())
        state = not bare
        S = limited(S, limits)
        own = {letter: 3 + number for number, letter in enumerate(of.features)}
        own |= {"N": 4} if "N" in of.letters else {}
        lengths = lengths_of(draw, B, S, limits) if packed else None
    fields = {**own, **options}
    if grouped:
        N = own["N"]
        divisors = [n for n in (1, 2, 3, 4, 8) if N % n == 0]
        free = limits.eager and not limits.pin and limits.stratum != USUAL
        in_turn = of.serves if turn % 2 or not limits.eager else (1,) * grouped
        fields["serves"] = tuple(any_of(divisors) for _ in range(grouped)) if free else in_turn
    if spare:
        fields["left_out"] = tuple(spare) if turn % 3 == 2 else ()
        if not limits.eager and limits.stratum != USUAL:
            fields["left_out"] = () if state else tuple(spare)
        elif limits.eager and not limits.pin:
            fields["left_out"] = tuple(name for name in spare if draw(st.booleans()))
    if stated.stabilised:
        rest = draw(dynamic(limits, quick=("resets", "closed", "extreme"), largest=2.0, state=state))
        memory = rest.pop("state")
        state, fields["empty"] = memory != "none", memory == "empty"
    else:
        rest = draw(
            dynamic(
                limits,
                quick=("closed", "saturated", "extreme"),
                largest=2.0,
                state=None,
                regimes=GATES,
                long=("remembering", "ordinary", "resets"),
            )
        )
    case = of.kind(B=B, S=0 if packed else S, lengths=lengths, state=state, **{**fields, **rest})
    return replace(case, **fixed)


def _spare(given: Given) -> bool:
    return given.optional and given.role != "state"
