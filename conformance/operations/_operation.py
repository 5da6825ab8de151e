"""Everything that follows from an operation's record: its calls, as values and as text, and the roles of its arrays.

A call is formed once, by `Operation.arguments_of`, from any stand-ins for the arrays and options: values of any
framework, to make the call, or their names, to write it as text. Nothing here depends on a framework.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.call import Call
from conformance.base.dtypes import Array, array
from conformance.base.result_form import ANYTHING, ArrayKind, Structure, expect_arrays, expect_form, named
from conformance.cases import Limits, emptied
from conformance.operations._record import Options, Record

Given = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Operation(Record):
    """A public function that maps named arrays to named arrays."""

    @cached_property
    def output(self) -> str:
        """The output that has steps."""
        return self.outputs[0].name

    @cached_property
    def in_dtype(self) -> tuple[str, ...]:
        """The outputs in the dtype of the values; all other outputs are states."""
        return tuple(output.name for output in self.outputs if output.role == "value")

    @cached_property
    def sequences(self) -> tuple[str, ...]:
        """The arguments that have a step axis."""
        return tuple(argument.name for argument in self.arguments if "S" in argument.axes)

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """The floating-point arguments that all sequences share."""
        return tuple(
            argument.name
            for argument in self.arguments
            if argument.role == "value" and not {"B", "..."}.intersection(argument.axes)
        )

    def weights_of(self, arrays: Given) -> tuple[str, ...]:
        """The weights that a call with these arrays has."""
        return tuple(name for name in self.weights if name in arrays)

    @cached_property
    def states(self) -> dict[str, str]:
        """Each final state, and the argument by which a later call continues from it."""
        return {argument.continues: argument.name for argument in self.arguments if argument.continues is not None}

    @cached_property
    def state_arguments(self) -> tuple[str, ...]:
        return tuple(self.states.values())

    def axes(self, letter: str, packed: bool = False) -> dict[str, int]:
        """The first axis with a letter, in each argument and output that has one.

        Args:
            letter: ``N`` stands for ``Nx`` and similar ones, too, and ``B`` for the first of several leading axes.
            packed: whether the sequences are packed along one axis.
        """
        found = {}
        for each in (*self.arguments, *self.outputs):
            letters = (each.shape.replace("B S", "T") if packed else each.shape).split()
            alike = [at for at, own in enumerate(letters) if own[:1] == letter and "+" not in own]
            leading = [0] if letter == "B" and letters[0] == "..." else []
            for axis in (leading or alike)[:1]:
                found[each.name] = axis
        return found

    @cached_property
    def head_axis(self) -> dict[str, int]:
        """The head axis of each floating-point argument without states, counted from the last if there are steps."""
        heads = self.axes("N")
        own = [each for each in self.arguments if each.name in heads and each.name not in self.state_arguments]
        return {each.name: heads[each.name] - (len(each.axes) if "S" in each.axes else 0) for each in own}

    @cached_property
    def primals(self) -> tuple[str, ...]:
        """The floating-point arguments in the order of the call."""
        return tuple(argument.name for argument in self.arguments if argument.role != "index")

    @property
    def packs(self) -> bool:
        return any(argument.name == "cu_seqlens" for argument in self.arguments)

    @property
    def recurs(self) -> bool:
        """Whether it carries states along a step axis."""
        return bool(self.sequences and self.states)

    def takes(self, option: str) -> bool:
        return any(each.name == option for each in self.options)

    @property
    def backward_name(self) -> str:
        """The name of the public function that is a target's own backward."""
        return self.name if self.backward.method is not None else f"{self.name}_backward"

    def describes(self, case: Any) -> bool:
        """Whether a case of a law is a call of this operation, so that it can have features and be judged alone."""
        return isinstance(case, type(self.rows[0]))

    def call_of(self, case: Any, dtype: str) -> Call:
        """The call that a case stands for."""
        return self.make_call(self.name, case, dtype)

    def smallest(self, dtype: str) -> dict[str, Array]:
        """The arrays that no call may omit, with every size 1 and every element 1."""
        needed = (argument for argument in self.arguments if not argument.optional)
        axes = {argument.name: sum(letter != "..." for letter in argument.axes) for argument in needed}
        return {name: array(np.ones((1,) * count), dtype) for name, count in axes.items()}

    def all_cases(self, limits: Limits) -> st.SearchStrategy:
        """Dense and packed cases if a new shape is cheap; otherwise those that other laws have compiled already."""
        if not self.packs or not limits.eager:
            return self.cases["dense"](limits)
        return st.one_of(
            self.cases["dense"](limits), self.cases["packed"](limits).filter(lambda case: bool(case.lengths))
        )

    def with_size_0(self, size: str) -> tuple[Any, ...]:
        """The rows with a size 0; none if the size must be at least 1, or if cases do not have it."""
        letters = {letter.replace("T", "S") for argument in self.arguments for letter in argument.axes}
        own = {field.name for field in fields(getattr(self.rows[0], "inner", self.rows[0]))}
        return (
            tuple(emptied(row, size) for row in self.rows) if size in (letters & own).difference(self.never_0) else ()
        )

    @property
    def stepless(self) -> tuple[Any, ...]:
        """A case without a step but with a state, which must be returned as a copy."""
        return self.with_size_0("S")[:1] if self.recurs else ()

    def cuts(self, limits: Limits) -> st.SearchStrategy:
        """Cases that are cut, if a new shape is cheap at any share of their steps, the ends included."""
        if not limits.eager:
            return self.cases.get("cut", self.cases["dense"])(limits)
        shares = st.one_of(st.sampled_from((0.5, 0.0, 1.0)), st.floats(0, 1, width=16))
        return st.builds(lambda case, cut: replace(case, cut=cut), self.cases["dense"](limits), shares)

    def representative(self, case: Any) -> Any:
        """The case that stands for all cases with the same value."""
        return replace(case, **self.immaterial)

    def differentiable(self, arrays: Given) -> tuple[str, ...]:
        """The arguments of a recurrence's call that have a gradient."""
        optional = {argument.name for argument in self.arguments if argument.optional}
        names = (*self.sequences, *self.weights, *self.state_arguments)
        return tuple(name for name in names if name not in optional or name in arrays)

    @cached_property
    def stepped_outputs(self) -> tuple[str, ...]:
        """The outputs that have steps."""
        return (self.output, *(each.name for each in self.outputs[1:] if "S" in each.shape.split()))

    def stepped(self, name: str) -> bool:
        return name in self.stepped_outputs or name in self.sequences

    def carried(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The final state as the arguments of a call that continues."""
        return {argument: outputs[name] for name, argument in self.states.items()}

    def kept(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The initial state among the arrays."""
        return {name: x for name, x in arrays.items() if name in self.state_arguments}

    def part(self, arrays: Mapping[str, Array], steps: slice) -> dict[str, Array]:
        """Dense arrays at ``steps``; weights are unchanged, states are omitted."""
        return {
            name: replace(x, values=x.values[:, steps]) if self.stepped(name) else x
            for name, x in arrays.items()
            if name not in self.state_arguments
        }

    def portable_options(self, options: Options) -> dict[str, Any]:
        """All options that have a meaning in any language, with defaults for those that are omitted."""
        return {option.name: options.get(option.name, option.default) for option in self.options if option.portable}

    def returns_states(self, options: Options) -> bool:
        if self.state_switch is None:
            return True
        told = options if self.curried is None else options[self.curried]
        return bool(told.get(self.state_switch, self.switched_on))

    def passed(self, options: Options) -> Options:
        """The options that a call names: those of a case, and the state switch only if it is on."""
        if self.state_switch is None or self.curried is not None:
            return options
        others = {name: option for name, option in options.items() if name != self.state_switch}
        return {**others, self.state_switch: True} if self.returns_states(options) else others

    def result_of(self, options: Options) -> Structure:
        """The structure of the result of a call with these options."""
        return self.returns if self.returns_states(options) else self.returns[:1]

    def arguments_of(
        self, given: Given, options: Options, make_tuple: Callable[..., Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments of a call.

        Args:
            given: a stand-in for each array; None, or no entry, if it is omitted.
            options: a stand-in for each passed option; it may include the argument that holds a state, which then
                replaces the arrays of the state.
            make_tuple: makes the tuple of states from the stand-ins for its arrays.
        """
        by_position = [argument for argument in self.arguments if argument.passed == "position"]
        spare = [argument.name for argument in by_position if argument.optional]
        with_spare = bool(spare) and given.get(spare[0]) is not None
        positional = [given[argument.name] for argument in by_position if with_spare or not argument.optional]
        keywords: dict[str, Any] = {}
        if self.state is not None:
            state = self._state(given, make_tuple)
            if self.state.name in options:
                state = options[self.state.name]
            if self.state.passed == "position":
                positional.append(state)
            elif state is not None or self.state.name in options:
                keywords[self.state.name] = state
        for argument in self.arguments:
            if argument.passed == "keyword" and given.get(argument.name) is not None:
                keywords[argument.name] = given[argument.name]
        keywords |= {option.name: options[option.name] for option in self.options if option.name in options}
        keywords.pop(self.curried or "", None)
        return positional, keywords

    def untaken(self, function: Callable[..., Any], given: Given, options: Options) -> set[str]:
        """The keywords of a call for which the function has no parameter; empty if its parameters are not known."""
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return set()
        if self.curried is not None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return set()
        _, keywords = self.arguments_of(given, self.passed(options), lambda *parts: parts)
        return set(keywords) - set(parameters)

    def _state(self, given: Given, make_tuple: Callable[..., Any]) -> Any:
        parts = [given.get(argument.name) for argument in self.arguments if argument.passed == "tuple"]
        return None if all(part is None for part in parts) else make_tuple(*parts)

    def backward_arguments_of(
        self, given: Given, options: Options, cotangents: Given, taken: set[str] | None, make_tuple: Callable[..., Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a target's own backward.

        Args:
            taken: the names of the parameters that it has; None if they are not known.
        """
        spare = {option.name for option in self.options if not option.changes_value} - (taken or set())
        passed = {name: option for name, option in options.items() if name not in spare and name != self.state_switch}
        positional, keywords = self.arguments_of(given, passed, make_tuple)
        for output in self.outputs:
            if output.cotangent is not None and output.name in cotangents:
                keywords[output.cotangent] = cotangents[output.name]
        if self.state is not None and all(name in cotangents for name in self.states):
            keywords[self.state.cotangent] = make_tuple(*(cotangents[name] for name in self.states))
        return positional, keywords

    def call(
        self, function: Callable[..., Any], arrays: Given, options: Options, kind: ArrayKind = ANYTHING
    ) -> dict[str, Any]:
        """Call the public function and return its outputs by name.

        Raises:
            WrongResultError: the result has another form.
        """
        positional, keywords = self.arguments_of(arrays, self.passed(options), self._make_tuple)
        target = function if self.curried is None else function(options[self.curried])
        result = target(*positional, **keywords)
        told = {} if self.state_switch is None else {self.state_switch: self.returns_states(options)}
        return named(self.name, self.result_of(options), result, kind, told)

    def differentiate(
        self,
        function: Callable[..., Any],
        arrays: Given,
        options: Options,
        cotangents: Given,
        kind: ArrayKind = ANYTHING,
    ) -> dict[str, Any]:
        """Call a target's own backward, or the function of which it is a method, and return the gradients by name.

        Raises:
            WrongResultError: the result has another form.
        """
        if self.backward.method is not None:
            function = getattr(function(options[self.curried or ""]), self.backward.method)
        taken = set(inspect.signature(function).parameters)
        positional, keywords = self.backward_arguments_of(arrays, options, cotangents, taken, self._make_tuple)
        gradients = function(*positional, **keywords)
        name = self.backward_name if self.backward.method is None else f"{self.name}.{self.backward.method}"
        if self.backward.in_order:
            fits = isinstance(gradients, tuple | list) and len(gradients) == len(self.primals)
            expect_form(name, f"the gradients of ({', '.join(self.primals)})", fits, gradients, kind)
            named_gradients = dict(zip(self.primals, gradients, strict=True))
            expect_arrays(name, named_gradients, kind)
            return named_gradients
        expect_form(name, "a dict of gradients by argument name", isinstance(gradients, Mapping), gradients, kind)
        flat = {key: x for key, x in gradients.items() if self.state is None or key != self.state.name}
        expect_arrays(name, flat, kind)
        if self.state is None or self.state.name not in gradients:
            return flat
        states = gradients[self.state.name]
        fits = isinstance(states, tuple | list) and len(states) == len(self.state_arguments)
        form = f"a dict whose {self.state.name!r} is a tuple of {len(self.state_arguments)} gradients"
        expect_form(f"{name} with a state", form, fits, gradients, kind)
        of_states = dict(zip(self.state_arguments, states, strict=True))
        expect_arrays(name, of_states, kind)
        return {**flat, **of_states}

    def _make_tuple(self, *parts: Any) -> Any:
        assert self.state is not None
        return self.state.type(*parts)
