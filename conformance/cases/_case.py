"""The common parts of cases: length and width, seed, description, cotangents, elements, their form in JSON.

Shapes come in strata: ``small`` (S from 0 to 7), ``chunk`` (around the lengths at which chunks end) and ``long`` (over
a thousand steps, unless set otherwise), and every law sees all of its strata. For a framework that compiles per shape,
shapes come from short tables, so that laws share compiled functions. In each stratum the first cases are pinned to
values that no law may miss (`PINS`); the others are drawn freely.

The values of a case's arrays come from a regime and a seed, which have no simpler neighbours that a search could shrink
them to. A case can instead request that its elements are replaced after they are drawn, by simple ones that can be read
and computed by hand; its shapes, infinities and zeros are kept.

A report, a script or a file of known failures stores enough of a case to restore it. A case class joins with
`register`. Most are frozen dataclasses of plain values, which need nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import LARGEST, Array, accumulation, array
from conformance.base.options import MAX_STEPS
from conformance.cases._gates import ABOVE, AT_FLOOR, GATES

STRATA = ("small", "chunk", "long")
USUAL = "usual"
"""The stratum of `conformance.cases._usual`, on which some laws are tried too; its cases are all pinned."""
SMALL_STEPS = (0, 1, 2, 3, 5, 7)
CHUNK_STEPS = (13, 31, 32, 33, 63, 64, 65, 97, 130)
LONG_STEPS = MAX_STEPS
PINS = {
    "small": ("well-conditioned", "small magnitude", "held"),
    "chunk": ("small magnitude", "well-conditioned"),
    "long": ("well-conditioned",),
}
CLIPPING = "with_gradient_clipping"
"""The field of a case that says its gradient clipping."""
COTANGENTS = ("dense", "output only", "state only", "one step")
COTANGENT_SCALES = (1.0, 1e-4, 1e4, 1e6)
"""Magnitudes of cotangents: those of a mean over many elements, and those under loss scaling."""
SEEDS = st.integers(0, 2**16 - 1)


@dataclass(frozen=True)
class Limits:
    """The limits within which a strategy draws cases; the docstring of this module explains them.

    Attributes:
        stratum: one of `STRATA`, or `USUAL`.
        eager: whether a new shape is cheap; otherwise shapes come from the tables.
        dtype: the dtype of the values; some tables are shorter for some dtypes.
        max_steps: the number of steps of the longest sequence.
        layouts: the memory layouts that arrays may have.
        pin: one of `PINS`, to which the regimes of values are pinned; "" for none.
        quick: whether one row of a table is enough, and the few cases without a pin have extreme values.
        row: of the usual sizes (`conformance.cases._usual.rows_of`), the row; None for any.
        seed: of the usual sizes, the seed of their rows and values.
        sizes: of the usual sizes, those that replace the ones of a row.
    """

    stratum: str
    eager: bool
    dtype: str
    max_steps: int
    layouts: tuple[str, ...] = ("contiguous",)
    pin: str = ""
    quick: bool = False
    row: int | None = None
    seed: int = 0
    sizes: tuple[tuple[str, int], ...] = ()

    def steps(self) -> tuple[int, ...]:
        choice = {"small": SMALL_STEPS, "chunk": CHUNK_STEPS, "long": (min(LONG_STEPS, self.max_steps),)}[self.stratum]
        if self.pin:
            # These are enough steps for every branch of a law that has hardly any other case.
            choice = (65,) if (self.stratum, self.pin) == ("chunk", "well-conditioned") else choice
            choice = tuple(S for S in choice if S > 2)
        return tuple(S for S in choice if self.max_steps >= S) or (self.max_steps,)


def pinned(limits: Limits, count: int) -> list[tuple[Limits, int]]:
    """Distribute ``count`` examples: one for each pin of the stratum, as far as they reach, then the others.

    A single example of a pinned part is the simplest case of its pin, the same in every run.
    """
    pins = PINS[limits.stratum][:count]
    parts = [(replace(limits, pin=pin), 1) for pin in pins]
    return [*parts, (limits, count - len(pins))] if count > len(pins) else parts


class Sequences:
    """The sizes that follow from ``B``, ``S`` and ``lengths``, the fields of a case that may be packed."""

    B: int
    S: int
    lengths: tuple[int, ...] | None
    cotangents: str
    cotangent_scale: float
    layout: str
    seed: int
    elements: str

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def sequences(self) -> int:
        return self.B if self.lengths is None else len(self.lengths)

    @property
    def steps(self) -> int:
        """The steps of the longest sequence."""
        return self.S if self.lengths is None else max(self.lengths, default=0)

    @property
    def tokens(self) -> tuple[int, int]:
        """The leading axes of arrays with steps; packed sequences lie along the second one."""
        return (self.B, self.S) if self.lengths is None else (1, sum(self.lengths))

    def describe(self) -> str:
        return words(self, told=("gates", "seed"), untold=("B", "S") if self.packed else ())

    def as_arrays(
        self, raw: dict[str, np.ndarray], state: dict[str, np.ndarray], dtype: str, gate_dtype: str | None = None
    ) -> dict[str, Array]:
        """The arrays of the call; forget gates that are drawn finite stay finite.

        Args:
            raw: the arrays but for the state, in the dtype of the values.
            state: the initial state, in the accumulation dtype.
            gate_dtype: the dtype of ``i`` and ``f``, if it is another one.
        """
        raw, state = ({name: replaced(x, self.elements) for name, x in of.items()} for of in (raw, state))
        own = dict.fromkeys("if", gate_dtype or dtype)
        if "f" in raw:
            raw["f"] = finite_in(raw["f"], own["f"])
        arrays = {name: array(x, own.get(name, dtype), self.layout) for name, x in raw.items()}
        arrays |= {name: array(x, accumulation(dtype), self.layout) for name, x in state.items()}
        if self.lengths is not None:
            arrays["cu_seqlens"] = array(np.cumsum([0, *self.lengths]), "int32")
        return arrays

    def drawn_cotangents(self, salt: int, dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """The cotangents of the outputs: the first output has steps and the dtype of the values, others are states."""
        rng, output = generator(self.seed, salt), next(iter(shapes))
        raw = {name: cotangent(rng, name, shape, self.cotangents, output) for name, shape in shapes.items()}
        scale = cotangent_scale(self, dtype)
        raw = {name: scale * replaced(x, self.elements) for name, x in raw.items()}
        if self.packed:
            raw[output] = raw[output][0]
        return {name: array(x, dtype if name == output else accumulation(dtype)) for name, x in raw.items()}


def finite_in(x: np.ndarray, dtype: str) -> np.ndarray:
    """The array with finite elements that are beyond those of the dtype as large as it has them."""
    largest = np.where(np.isfinite(x), LARGEST[dtype], np.inf)
    return np.clip(x, -largest, largest)


def generator(seed: int, *salt: int) -> np.random.Generator:
    return np.random.default_rng([seed, *salt])


def words(case: Any, told: tuple[str, ...], untold: tuple[str, ...] = ()) -> str:
    """The fields of a case that do not have their default value, and those that are always told, as words."""
    said = []
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name in told or (field.name not in untold and value != field.default):
            said.append(_said(field.name, value))
    return ", ".join(said)


_WITHOUT = {ABOVE: "|n·q̂| at its floor in every step", AT_FLOOR: "|n·q̂| above its floor in every step"}
"""Two removed properties, in words that say what every step has instead."""


def _said(name: str, value: Any) -> str:
    if name == "removed":
        return ", ".join(_WITHOUT.get(each, f"no {each}") for each in value)
    if isinstance(value, tuple) and value and all(isinstance(each, str) for each in value):
        value = " and ".join(value)
    return f"{name.replace('_', ' ')} {value}" if isinstance(value, str) else f"{name}={value}"


def cotangent(rng: np.random.Generator, name: str, shape: tuple[int, ...], pattern: str, output: str) -> np.ndarray:
    """A random cotangent: dense, or zero where ``pattern`` requires it."""
    d = rng.normal(size=shape)
    if (pattern == "output only" and name != output) or (pattern == "state only" and name == output):
        return 0 * d
    if pattern == "one step" and name == output and d.size:
        keep = int(rng.integers(shape[1]))
        d[:, :keep] = 0
        d[:, keep + 1 :] = 0
    return d


def cotangent_scale(case: Any, dtype: str) -> float:
    """The magnitude of a case's cotangents, as far as the dtype has room for them and for sums of them."""
    return min(case.cotangent_scale, LARGEST[dtype] / 100)


DENSE = {"cotangents": "dense", "cotangent_scale": 1.0}
_HELD = {"small": (0.0, 1.0, 0.0, 0.5), "chunk": (0.3, 0.5, 0.2, 0.7), "long": (0.3, 0.5)}
_PINNED: dict[str, dict[str, Any]] = {
    "well-conditioned": {"gates": "ordinary", "scale": 1.0, **DENSE},
    "small magnitude": {"gates": "small", "scale": 0.01, **DENSE, "cotangent_scale": 1e6},
    # Gates that keep a memory matter only if there is one.
    "held": {"gates": "ordinary", "held": 1.0, "scale": 1.0, **DENSE, "state": "random"},
}
_PINNED_WITHOUT_HOLDING = {**_PINNED, "held": {"gates": "remembering", "scale": 1.0, **DENSE}}


@st.composite
def dynamic(
    draw: Any,
    limits: Limits,
    *,
    quick: tuple[str, ...],
    largest: float,
    state: bool | None,
    regimes: tuple[str, ...] = GATES,
    long: tuple[str, ...] = ("changing", "resets", "mixed"),
) -> dict[str, Any]:
    """Draw the fields of a recurrence's case that do not affect shapes.

    Args:
        quick, long, regimes: regimes of the gates for a quick run, for long sequences, and for all others.
        largest: the largest scale.
        state: whether an initial memory is given, of one kind or another; None if the fields do not say its kind, and
            no gates hold it.
    """
    if limits.stratum == USUAL:
        return _usual(draw, limits, state)
    is_long, fields = limits.stratum == "long", {}
    if state is not None:
        states = ("random",) if limits.pin or is_long else ("random", "random", "random", "empty")
        fields["state"] = draw(st.sampled_from(states)) if state else "none"
    fields["gates"] = draw(st.sampled_from(long if is_long else quick if limits.quick else regimes))
    if state is not None:
        fields["held"] = draw(st.sampled_from(_HELD[limits.stratum]))
    fields["scale"] = draw(st.sampled_from((1.0, 1.0, 1.0, 0.01, 1e-3, largest, largest, 1e3)))
    fields["cotangents"] = draw(st.sampled_from(COTANGENTS))
    fields["cotangent_scale"] = draw(st.sampled_from((1.0, *COTANGENT_SCALES)))
    fields["layout"] = draw(st.sampled_from(limits.layouts))
    fields["seed"] = draw(SEEDS)
    pins = _PINNED_WITHOUT_HOLDING if state is None else _PINNED
    return {**fields, **pins.get(limits.pin, {})}


def _usual(draw: Any, limits: Limits, state: bool | None) -> dict[str, Any]:
    """The same for usual sizes: gates that keep a memory for a few steps and for many, in turn."""
    row = draw(st.integers(0, 7)) if limits.row is None else limits.row
    given = {} if state is None else {"state": "random" if state else "none"}
    return {
        **given,
        "gates": ("ordinary", "remembering")[row % 2],
        "cotangent_scale": COTANGENT_SCALES[row % len(COTANGENT_SCALES)],
        "layout": limits.layouts[row % len(limits.layouts)],
        "seed": limits.seed + row,
    }


def rows(table: Mapping[str, tuple], limits: Limits) -> st.SearchStrategy:
    rows = table[limits.stratum]
    return st.sampled_from(rows if limits.dtype == "float32" and not limits.quick else rows[:1])


def limited(S: int, limits: Limits) -> int:
    return min(S, limits.max_steps)


def lengths_of(draw: Any, B: int, T: int, limits: Limits) -> tuple[int, ...]:
    """``B`` lengths with sum ``T``, often with empty sequences, from cut points that shrink to 0.

    For a pinned case, which is the simplest one, they are as equal as possible: if one sequence held all tokens,
    nothing could be learnt about the others. Of three or more sequences the second is empty unless gates and values are
    the simplest, too.
    """
    if B == 0:
        return ()
    if limits.pin:
        full = B if B < 3 or limits.pin == "well-conditioned" else B - 1
        equal = [(T * (b + 1)) // full - (T * b) // full for b in range(full)]
        return tuple(equal if full == B else [equal[0], 0, *equal[1:]])
    cuts = sorted(draw(st.lists(st.integers(0, T), min_size=B - 1, max_size=B - 1)))
    if B >= 3 and draw(st.booleans()):
        cuts[-1] = cuts[-2]
    return tuple(int(n) for n in np.diff([0, *cuts, T]))


AS_DRAWN = "as drawn"
SIMPLE = ("ones", "signs", "whole numbers")
"""The kinds of simple elements, the simplest first: 1, ±1, the nearest whole number."""


def replaced(x: np.ndarray, elements: str) -> np.ndarray:
    """The array with its finite elements other than 0 replaced by a kind of `SIMPLE`; unchanged for drawn elements."""
    if elements == AS_DRAWN:
        return x
    if elements == "whole numbers":
        return np.rint(x)
    return np.where(np.isfinite(x) & (x != 0), 1.0 if elements == "ones" else np.sign(x), x)


def simplicity(case: Any) -> int:
    """The position of a case's elements in `SIMPLE`, lower if simpler; drawn elements come after all of them."""
    elements = getattr(getattr(case, "inner", case), "elements", AS_DRAWN)
    return (*SIMPLE, AS_DRAWN).index(elements)


def simpler(case: Any) -> list[Any]:
    """The case with each kind of simple elements, the simplest first; none if its class does not have them."""
    if hasattr(case, "inner"):
        return [replace(case, inner=inner) for inner in simpler(case.inner)]
    return [replace(case, elements=elements) for elements in SIMPLE] if hasattr(case, "elements") else []


def emptied(case: Any, size: str) -> Any:
    """The case with one of its sizes 0. For packed sequences, B = 0 means that there are none, S = 0 no token."""
    if hasattr(case, "inner"):
        return replace(case, inner=emptied(case.inner, size))
    if size in "BS" and getattr(case, "lengths", None) is not None:
        return replace(case, lengths=(0,) * len(case.lengths) if size == "S" else ())
    return replace(case, **{size: 0})


def as_drawn(case: Any) -> Any:
    """The case with its elements as they are drawn."""
    if hasattr(case, "inner"):
        return replace(case, inner=as_drawn(case.inner))
    return replace(case, elements=AS_DRAWN) if hasattr(case, "elements") else case


Class = TypeVar("Class", bound=type)


ToFields = Callable[[Any], dict[str, Any]]
FromFields = Callable[[dict[str, Any]], Any]
_kinds: dict[str, tuple[ToFields, FromFields]] = {}


def register(
    *,
    to_fields: ToFields = lambda case: vars(case),
    from_fields: FromFields | None = None,
    instead: bool = False,
) -> Callable[[Class], Class]:
    """Allow the decorated class of cases to be written and read under its own name.

    Args:
        to_fields: returns the stored part of a case, plain values by name; by default every field of the dataclass.
        from_fields: restores the case from the stored part (with tuples where there were tuples); by default the class
            is called with it.
        instead: whether it may replace a class of the same name, as one that is made anew where a file is read again.

    Raises:
        ValueError: another class already has that name.
    """

    def join(cls: Class) -> Class:
        if cls.__name__ in _kinds and not instead:
            raise ValueError(f"there is a class of cases named {cls.__name__} already")
        _kinds[cls.__name__] = to_fields, from_fields or (lambda kept: cls(**kept))
        return cls

    return join


def to_json(case: Any) -> dict[str, Any]:
    """A case in the form that JSON takes: its class under ``kind``, then its fields; nested cases in the same form.

    Raises:
        TypeError: its class is not registered, or a field holds a value that JSON cannot represent exactly.
    """
    name = type(case).__name__
    if name not in _kinds:
        raise TypeError(f"a {name} cannot be written: its class has not joined by `cases.register`")
    return {"kind": name, **{field: _plain(x) for field, x in _kinds[name][0](case).items()}}


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, tuple | list):
        return [_plain(each) for each in x]
    return to_json(x)


def from_json(written: dict[str, Any]) -> Any:
    """The case that `to_json` wrote. Lists become tuples, which cases use.

    A law's own class is known once the law's module is imported (`conformance.laws.all_laws` imports them all).

    Raises:
        ValueError: no class is registered under that kind.
    """
    kept = dict(written)
    name = kept.pop("kind", None)
    if name not in _kinds:
        raise ValueError(f"there is no kind of case named {name!r}; there are {', '.join(sorted(_kinds))}")
    return _kinds[name][1]({field: _revived(x) for field, x in kept.items()})


def _revived(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(_revived(each) for each in x)
    return from_json(x) if isinstance(x, dict) else x
