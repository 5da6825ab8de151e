"""A recurrence in thirty lines: its arrays by role, and one step in NumPy.

All that the suite needs follows: the whole sequence from the step, the gradient from the tape (`traced`), the tolerance
of each element from the step with every operation rounded at random (`rounded`), cases from the roles.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal

import numpy as np

from conformance.rows.row import Row
from conformance.specification.changed import Specification, changed

Arrays = Mapping[str, Any]
Versions = tuple[Callable[[], Specification], ...]
Role = Literal["value", "gate", "input gate", "log decay", "state"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """An array that a recurrence takes; made by `value`, `gate`, `input_gate`, `log_decay` or `state`."""

    shape: str
    role: Role
    low: float = -math.inf
    high: float = math.inf
    length: float | None = None
    final: str = ""
    empty: float = 0.0
    optional: bool = False
    keeps: bool = True
    only_with: str = ""
    exponential_with: tuple[str, Any] | None = None
    log_scale: str = ""

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(self.shape.split())

    @property
    def stepped(self) -> bool:
        return "S" in self.letters

    @property
    def gates(self) -> bool:
        """Whether it holds gates or log decays."""
        return self.role in ("gate", "input gate", "log decay")

    @property
    def unbounded(self) -> bool:
        """Whether it is a gate or a log decay that may be infinite."""
        return self.role in ("log decay", "input gate") or (self.role == "gate" and math.isinf(self.high - self.low))

    @property
    def weight(self) -> bool:
        """Whether all sequences share it."""
        return "B" not in self.letters


def value(shape: str, *, length: float | None = None, optional: bool = False, only_with: str = "") -> Given:
    """An array of values, or of weights if its shape has no ``B``.

    Args:
        shape: letters, ``B S N K``: sequences, steps, heads and any others; ``Nk`` is a number that divides N, whose
            heads each serve several.
        length: the Euclidean length along the last axis that vectors are drawn with, for a recurrence that would grow
            without bound on others; None draws elements of about 1.
        optional: whether a call may omit it.
        only_with: the option of True or False without which no call has it.
    """
    return Given(shape=shape, role="value", length=length, optional=optional, only_with=only_with)


def gate(
    shape: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    optional: bool = False,
    keeps: bool = True,
    exponential_with: tuple[str, Any] | None = None,
) -> Given:
    """An array of numbers between ``low`` and ``high``; without bounds, of preactivations in [−∞, ∞].

    Args:
        keeps: whether it is drawn large in calls that are to keep their memory for many steps.
        exponential_with: an option and its value with which it is a logarithm of what a step keeps, below +∞.
    """
    return Given(
        shape=shape,
        role="gate",
        low=low,
        high=high,
        optional=optional,
        keeps=keeps,
        exponential_with=exponential_with,
    )


def input_gate(shape: str) -> Given:
    """An array of logarithms of what a step writes with, in [−∞, ∞): −∞ writes nothing.

    A recurrence has one at most. It is drawn together with the first gate that keeps a memory, which has its shape.
    """
    return Given(shape=shape, role="input gate")


def log_decay(shape: str, *, optional: bool = False) -> Given:
    """An array of logarithms of what a step keeps of a memory, in [−∞, 0]: −∞ keeps nothing."""
    return Given(shape=shape, role="log decay", high=0.0, optional=optional)


def state(shape: str, final: str, *, empty: float = 0.0, low: float = -math.inf, log_scale: str = "") -> Given:
    """A memory before the first step.

    Args:
        final: the name of the same memory after a step: the step takes it, and both the step and the call return it.
        empty: its elements where a call omits it.
        low: the least element of one that is drawn and not empty.
        log_scale: the name of the final state that is the logarithm of its unit: the memory is this one times exp of
            that, and the two may be off together.
    """
    return Given(shape=shape, role="state", final=final, empty=empty, low=low, log_scale=log_scale, optional=True)


Step = Callable[..., Any]


def whole(function: Step) -> Step:
    """Mark a function that is no step but the whole recurrence.

    It is called like a step, on arrays that have their steps, ``(B, S, …)``, and returns all outputs and the last
    states. Packed sequences are handed to it one after the other.
    """
    function.takes_sequences = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


@dataclass(frozen=True, kw_only=True)
class StateTuple:
    """The argument that holds all arrays that are passed within a tuple.

    Attributes:
        name: the name of the argument.
        type: makes the tuple of its arrays, in the order of the arguments.
        cotangent: the keyword by which a target's own backward takes the cotangents of the final states, as such a
            tuple.
        passed: by keyword, and then only if a state is given, or by position.
    """

    name: str
    type: Callable[..., Any]
    cotangent: str
    passed: Literal["position", "keyword"] = "keyword"


@dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence:
    """A recurrence, and how it is called.

    A call is ``NAME(arrays…, initial states=None, cu_seqlens=None, options…) → (outputs…, final states…)``; arrays are
    passed by position and all else by keyword. With ``cu_seqlens`` the axes ``B S`` are one axis of tokens.

    Attributes:
        name: of the function.
        step: ``(final states, arrays at one step, weights, options; all by keyword) → (outputs…, new states…)``, on
            arrays without the axis of steps, all heads in full; or the `whole` recurrence. It uses NumPy and nothing
            else. Optional arrays that a call omits are None.
        arguments: by name, in the order of a call.
        outputs: their shapes by name, in the order of the result.
        options: by name the values that are tried, the first of them the default.
        backward: the gradient, if it is written out: ``(arrays, options, dOUTPUT…; all by keyword) → gradients by
            name``. It is compared with the tape's.
        spellings: other steps that are right, by what they do differently, such as the recurrence in chunks (`whole`):
            an element may be off by what rounding does to any of them.
        faults: steps that are wrong, by what a report says of a target that computes them.
        packs: whether a call may have ``cu_seqlens``.
        wide_gates: whether gates and log decays may be float32 where the values have 16 bits.
        equation: of a step, as the law `value` shows it.
        state_tuple: the argument that holds all initial states, if they are passed within a tuple; the final ones are
            then returned in one, too.
        state_switch: the option that says whether final states are returned; without it they always are.
    """

    name: str
    arguments: Mapping[str, Given]
    outputs: Mapping[str, str]
    step: Step | None = None
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    backward: Callable[..., Mapping[str, Any]] | None = None
    spellings: Mapping[str, Step] = field(default_factory=dict)
    faults: Mapping[str, Step] = field(default_factory=dict)
    packs: bool = True
    wide_gates: bool = False
    equation: str = ""
    state_tuple: StateTuple | None = None
    state_switch: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what cannot be a recurrence."""
        if not self.name.isidentifier():
            raise ValueError(f"the name {self.name!r} is not that of a function")
        letters: set[str] = set()
        for name, shape in (*((name, given.shape) for name, given in self.arguments.items()), *self.outputs.items()):
            own = shape.split()
            if not all(letter.isidentifier() for letter in own):
                raise ValueError(f"`{name}` has the shape {shape!r}; a shape is letters with blanks between, 'B S N K'")
            if ("S" in own or name in self.outputs) and own[:2] != ["B", "S"]:
                raise ValueError(f"`{name}` has the shape {shape!r}; arrays with steps begin with 'B S'")
            if "B" in own and "S" not in own and self.arguments[name].role != "state":
                raise ValueError(f"`{name}` has the shape {shape!r}: only states have sequences and no steps")
            if name in self.outputs and not letters.issuperset(own):
                raise ValueError(f"`{name}` has the shape {shape!r}, of which no argument has {set(own) - letters}")
            letters |= {*own, *("N" for letter in own if letter[0] == "N")}
        for name, values in self.options.items():
            if not isinstance(values, tuple | list) or not values:
                raise ValueError(f"the option {name} has no tuple of values to try, the default first: {values!r}")

    @cached_property
    def states(self) -> dict[str, str]:
        """Each final state, and the argument by which a call continues from it."""
        return {given.final: name for name, given in self.arguments.items() if given.role == "state"}

    @property
    def inputs(self) -> dict[str, Given]:
        """The arrays of a call but for states, by name."""
        return {name: given for name, given in self.arguments.items() if given.role != "state"}

    @cached_property
    def log_decays(self) -> tuple[str, ...]:
        """The arguments that right computations may add up over several steps before they take exp of them."""
        return tuple(name for name, given in self.arguments.items() if given.role == "log decay")

    @cached_property
    def stabilised(self) -> tuple[str, str] | None:
        """Its input gate and its forget gate; None if it has no input gate."""
        by_role = {given.role: name for name, given in self.arguments.items()}
        if "input gate" not in by_role:
            return None
        return by_role["input gate"], next(n for n, given in self.arguments.items() if given.role == "gate")

    @cached_property
    def log_scales(self) -> dict[str, str]:
        """By final state: the one that is the logarithm of its unit."""
        return {given.final: given.log_scale for given in self.arguments.values() if given.log_scale}

    @cached_property
    def results(self) -> tuple[str, ...]:
        return (*self.outputs, *self.states)

    @cached_property
    def shapes(self) -> dict[str, str]:
        """The shapes of all results."""
        return {**self.outputs, **{final: self.arguments[name].shape for final, name in self.states.items()}}

    @cached_property
    def grouped(self) -> tuple[str, ...]:
        """The letters of numbers of heads that may be fewer than N."""
        letters = (letter for given in self.arguments.values() for letter in given.letters)
        return tuple(dict.fromkeys(letter for letter in letters if letter[0] == "N" and letter != "N"))

    def with_step(self, step: Step) -> Specification:
        """The recurrence with another step, as a module with its function."""
        home = inspect.getmodule(inspect.unwrap(step))
        modules = {module.__name__: module for module in (inspect.getmodule(_whole), home) if module is not None}

        def function(*, cu_seqlens: Any = None, **given: Any) -> tuple[Any, ...]:
            return _whole(self, step, given, cu_seqlens)

        functions = {self.name: function, self.backward_name: self.backward}
        if self.backward is not None and (home := inspect.getmodule(self.backward)) is not None:
            modules[home.__name__] = home
        return Specification(_Functions(functions), modules)

    @property
    def backward_name(self) -> str:
        return f"{self.name}_backward"

    @property
    def written_out(self) -> bool:
        """Whether its gradient is."""
        return self.backward is not None

    @cached_property
    def right(self) -> Versions:
        """The recurrence as it is stated, and in its other spellings."""
        assert self.step is not None, "a recurrence states its step"
        return tuple(partial(self.with_step, step) for step in (self.step, *self.spellings.values()))

    @property
    def right_backward(self) -> Versions:
        """Its backward pass in other spellings, which may have the same bits and yet round otherwise."""
        return ()

    @property
    def foreign(self) -> Versions:
        """Ways to compute it that are right, but that lose digits which gatespec's own packages keep."""
        return ()

    @cached_property
    def wrong(self) -> Mapping[str, Callable[[], Specification]]:
        """Its faults, by name."""
        return {name: partial(self.with_step, step) for name, step in self.faults.items()}

    @property
    def gradient_options(self) -> Mapping[str, Row]:
        """The options that change the gradient alone, each with the row by which the tape follows it."""
        return {}

    def drawn(self, eager: bool) -> dict[str, Sequence[Any]]:
        """The values of the options that any law may give.

        Args:
            eager: whether a target takes another value without compiling for it.
        """
        return dict(self.options)

    def called(self, specification: Specification, arrays: Arrays, options: Mapping[str, Any]) -> dict[str, Any]:
        """The results of a call of one version, by name."""
        results = specification.function(self.name)(**arrays, **options)
        return dict(zip(self.results, results, strict=True))

    def differentiated(
        self, specification: Specification, arrays: Arrays, options: Mapping[str, Any], cotangents: Arrays
    ) -> dict[str, Any]:
        """The gradients by the backward pass of one version, by name."""
        function = specification.function(self.backward_name)
        return dict(function(**arrays, **{f"d{name}": x for name, x in cotangents.items()}, **options))

    def sizes(self, arrays: Arrays, packed: bool) -> dict[str, int]:
        """The sizes of a call by letter.

        Raises:
            ValueError: a shape does not fit its letters, or two arrays disagree.
        """
        found: dict[str, int] = {}
        for name, given in self.arguments.items():
            if arrays.get(name) is None:
                continue
            letters = given.shape.replace("B S", "T").split() if packed else given.letters
            shape = np.shape(arrays[name])
            if len(shape) != len(letters):
                raise ValueError(f"`{name}` has shape {list(shape)}; its axes are {' '.join(letters)}")
            for letter, size in zip(letters, shape, strict=True):
                if found.setdefault(letter, size) != size:
                    raise ValueError(f"`{name}` has {letter} = {size}, another array {found[letter]}")
        heads = [size for letter, size in found.items() if letter[0] == "N"]
        return {**found, "N": max(heads)} if heads else found


@dataclass(frozen=True, kw_only=True, eq=False)
class Specified(Recurrence):
    """A recurrence of `reference`: its function there, with the gradient.

    Attributes:
        rows: other ways to compute it that are right.
        foreign_rows: together with these, a way that is right for targets that need not keep gatespec's contract.
        of_gradient: `gradient_options`.
        apart: the options that only laws about them give.
        defaults: what None means for an option: where another value needs no new program, calls say it, too.
    """

    rows: tuple[Row, ...] = ()
    foreign_rows: tuple[Row, ...] = ()
    of_gradient: Mapping[str, Row] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def called(self, specification: Specification, arrays: Arrays, options: Mapping[str, Any]) -> dict[str, Any]:
        switched = {self.state_switch: True} if self.state_switch else {}
        results = specification.function(self.name)(**self._in_tuple(arrays), **options, **switched)
        flat = (x for part in results for x in (part if isinstance(part, tuple) else (part,)))
        return dict(zip(self.results, flat, strict=True))

    def differentiated(
        self, specification: Specification, arrays: Arrays, options: Mapping[str, Any], cotangents: Arrays
    ) -> dict[str, Any]:
        function, of_states = specification.function(self.backward_name), {}
        if self.state_tuple is not None and all(name in cotangents for name in self.states):
            of_states[self.state_tuple.cotangent] = self.state_tuple.type(*(cotangents[name] for name in self.states))
            cotangents = {name: x for name, x in cotangents.items() if name not in self.states}
        named = {f"d{name}": x for name, x in cotangents.items()}
        found = dict(function(**self._in_tuple(arrays), **named, **of_states, **options))
        if self.state_tuple is not None:
            found |= zip(self.states.values(), found.pop(self.state_tuple.name, ()), strict=False)
        return found

    def _in_tuple(self, arrays: Arrays) -> dict[str, Any]:
        """The arguments of a call, the states in their tuple where they have one."""
        names = tuple(self.states.values())
        if self.state_tuple is None or not all(name in arrays for name in names):
            return dict(arrays)
        others = {name: x for name, x in arrays.items() if name not in names}
        return {**others, self.state_tuple.name: self.state_tuple.type(*(arrays[name] for name in names))}

    @property
    def gradient_options(self) -> Mapping[str, Row]:
        return self.of_gradient

    def drawn(self, eager: bool) -> dict[str, Sequence[Any]]:
        # What changes the gradient alone would be compiled with every law.
        kept = self.apart if eager else (*self.apart, *self.of_gradient)
        said = {name: (default,) for name, default in self.defaults.items()} if eager else {}
        return {name: (*values, *said.get(name, ())) for name, values in self.options.items() if name not in kept}

    @property
    def written_out(self) -> bool:
        return True

    @cached_property
    def right(self) -> Versions:
        return (changed, *(partial(changed, row) for row in self.rows if not row.of_gradient))

    @cached_property
    def right_backward(self) -> Versions:
        return tuple(partial(changed, row) for row in self.rows if row.of_gradient)

    @cached_property
    def foreign(self) -> Versions:
        return (partial(changed, *self.rows, *self.foreign_rows),) if self.foreign_rows else ()


class _Functions(ModuleType):
    """A module of some functions."""

    def __init__(self, functions: Mapping[str, Any]):
        super().__init__("stated")
        vars(self).update(functions)


def _whole(stated: Recurrence, step: Step, given: Arrays, cu_seqlens: np.ndarray | None) -> tuple[Any, ...]:
    """A step applied to whole sequences, those of a dense batch together, packed ones one after the other."""
    arrays = {name: x for name, x in given.items() if name in stated.arguments and x is not None}
    options = {name: given.get(name, values[0]) for name, values in stated.options.items()}
    packed = cu_seqlens is not None
    kinds, size = stated.arguments, stated.sizes(arrays, packed)
    if packed:
        size["B"] = len(cu_seqlens) - 1
    omitted = {name: None for name, of in kinds.items() if of.role != "state" and name not in arrays}
    wide = {name: _all_heads(stated.arguments[name], np.array(x, dtype=np.float64), size) for name, x in arrays.items()}
    tokens = {name: x for name, x in wide.items() if kinds[name].stepped}
    shared = {name: x for name, x in wide.items() if kinds[name].weight}
    first, last = {}, {}
    for final, name in stated.states.items():
        shape = tuple(size[letter] for letter in kinds[name].letters)
        first[final] = wide[name] if name in wide else np.full(shape, kinds[name].empty)
        last[final] = first[final].copy()
    shapes = (shape.replace("B S", "T") if packed else shape for shape in stated.outputs.values())
    outputs = [np.empty(tuple(size[letter] for letter in shape.split())) for shape in shapes]
    checked = False
    for b, steps in _parts(size, cu_seqlens, getattr(step, "takes_sequences", False)):
        states = {final: x[b] for final, x in first.items()}
        for t in steps:
            results = step(**states, **{name: x[t] for name, x in tokens.items()}, **shared, **omitted, **options)
            results = results if isinstance(results, tuple | list) else (results,)
            if not checked:
                _expect_shapes(stated, results, [*(y[t] for y in outputs), *states.values()])
                checked = True
            for y, result in zip(outputs, results, strict=False):
                y[t] = result
            states = dict(zip(stated.states, results[len(outputs) :], strict=True))
        for final, x in states.items():
            last[final][b] = x
    return (*outputs, *last.values())


def _expect_shapes(stated: Recurrence, results: Sequence[Any], places: Sequence[Any]) -> None:
    """Raise `ValueError` if a step returned other arrays than it is stated to."""
    if len(results) != len(places):
        raise ValueError(f"the step returns {len(results)} arrays; expected {', '.join(stated.results)}")
    for name, result, place in zip(stated.results, results, places, strict=True):
        if np.shape(result) != np.shape(place):
            given, expected = (list(np.shape(x)) for x in (result, place))
            raise ValueError(f"the step returns {name} of shape {given}; expected {expected}")


def _all_heads(given: Given, x: Any, size: Mapping[str, int]) -> Any:
    """An array with N heads: head n is head ``n // (N/N′)`` of the given one."""
    for at, letter in enumerate(reversed(given.letters), start=1):
        if letter[0] == "N" and letter != "N":
            return np.repeat(x, size["N"] // size[letter], axis=-at)
    return x


def _parts(size: Mapping[str, int], cu_seqlens: np.ndarray | None, at_once: bool) -> list[tuple[slice, list[Any]]]:
    """The sequences that are computed together, and the indices of their steps, or the one of all steps at once."""
    if cu_seqlens is None:
        return [(slice(None), [...] if at_once else [(slice(None), t) for t in range(size["S"])])]
    bounds = enumerate(pairwise(np.asarray(cu_seqlens).tolist()))
    if at_once:
        return [(slice(b, b + 1), [(None, slice(start, end))]) for b, (start, end) in bounds]
    return [(slice(b, b + 1), [slice(t, t + 1) for t in range(start, end)]) for b, (start, end) in bounds]
