"""Formulas: functions that are computed instead of the definition, each with its name in words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from conformance.formulas import tape
from conformance.formulas.tape import Tensor

ACCUMULATION = "accumulation"
"""Key among the options of a formula: the dtype in which the call computes, for formulas that round."""

DTYPES = "dtypes"
"""Among the options of a formula: the dtype of each array of the call, by name."""

Values = Mapping[str, np.ndarray]
Tensors = Mapping[str, Tensor]
Computed = dict[str, np.ndarray]
Compute = Callable[[Values, Mapping[str, Any], Values | None], Computed]


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A function that differs from the definition.

    Attributes:
        name: the difference, in words that follow "equals": ``the gradient with the normaliser held constant``.
        compute: ``(arrays, options, cotangents) → outputs`` and, where there are cotangents, gradients under ``gradient
            of q``. Arrays and options as in a call of the operation, with `ACCUMULATION` and `DTYPES` among the
            options.
        changes_value: whether outputs differ from the definition's; otherwise only gradients do.
        change: the choices in which it differs; two formulas are combined by combining their choices.
        noisy: whether it rounds, so that a target with the same formula is close to it but not equal.
        occasional: whether it shows only in some calls that its name does not describe, so that their features are
            reported too.
        nan_at: names of features; NaN alone is taken for this formula if calls with each of these features have it.
        alone: whether it is not looked for together with another one, because it is one of a family with a parameter.
    """

    name: str
    compute: Compute
    changes_value: bool
    change: Mapping[str, Any]
    noisy: bool = False
    occasional: bool = False
    nan_at: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A recurrence as one form computes it, for dense tokens ``(B, S, …)``.

    Attributes:
        tokens, state: what the steps read, and the initial state ``(B, …)``.
        step: ``(tokens of the step, state) → (state, output)``.
        begin: changes the tokens and the state of a sequence before its first step.
        end: changes its final state.
    """

    tokens: Tensors
    state: Tensors
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensor]]
    begin: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]] = lambda tokens, state: (tokens, state)
    end: Callable[[Tensors], Tensors] = lambda state: state


@dataclass(frozen=True, kw_only=True)
class Form:
    """The choices of a variant that every recurrence has; the defaults are the definition.

    Attributes:
        uses_state: whether the initial state is used.
        transposed: whether the weights are transposed (of the mLSTM: C in the initial and the final state).
        swapped_gates: whether two gates are swapped: i and f, or the forget and the reset gate.
        chunk: the last steps that do not fill a chunk of this length are dropped; None for none.
        above: the number of steps above which they are.
        state_dtype: the dtype to which the state is rounded after each step; None for no rounding.
        packed_apart: whether packed sequences are kept apart.
        empty_apart: whether the final state of an empty packed sequence is its own, not that of the one before it.
        output, like: the output that has the steps, and an array of tokens of the same shape.
    """

    uses_state: bool = True
    transposed: bool = False
    swapped_gates: bool = False
    chunk: int | None = None
    above: int = 0
    state_dtype: str | None = None
    packed_apart: bool = True
    empty_apart: bool = True
    output: ClassVar[str]
    like: ClassVar[str]

    def passes(self, output: str) -> bool:
        """Whether an output passes its cotangent on."""
        raise NotImplementedError

    def steps(self, inputs: Tensors, options: Mapping[str, Any], B: int) -> Steps:
        """The recurrence for arrays, packed or dense, of a call of B sequences."""
        raise NotImplementedError

    def kept(self, *states: Tensor) -> tuple[Tensor, ...]:
        """The states as they are kept after a step."""
        dtype = self.state_dtype
        return states if dtype is None else tuple(tape.rounded(x, dtype) for x in states)

    def outputs(self, inputs: Tensors, cu_seqlens: np.ndarray | None, options: Mapping[str, Any]) -> Tensors:
        """The output of every step, and the final state."""
        B = inputs[self.like].shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        steps = self.steps(inputs, options, B)
        if cu_seqlens is None:
            return self._dense(steps, steps.tokens, steps.state)
        parts: list[Tensors] = []
        for b, (start, end) in enumerate(pairwise(map(int, cu_seqlens))):
            own = not parts or (self.packed_apart and (start < end or self.empty_apart))
            state = {name: x[b : b + 1] if own else parts[-1][name] for name, x in steps.state.items()}
            parts.append(self._dense(steps, {name: x[None, start:end] for name, x in steps.tokens.items()}, state))
        if not parts:
            return {self.output: steps.tokens[self.like], **steps.state}
        joined = {name: tape.concatenate([part[name] for part in parts], 0) for name in steps.state}
        return {self.output: tape.concatenate([part[self.output] for part in parts], 1)[0], **joined}

    def _dense(self, steps: Steps, tokens: Tensors, state: Tensors) -> Tensors:
        tokens, state = steps.begin(tokens, state)
        like = tokens[self.like]
        S = like.shape[1]
        kept = S if self.chunk is None or S <= self.above else S - S % self.chunk
        outputs = []
        for t in range(kept):
            state, output = steps.step({name: x[:, t] for name, x in tokens.items()}, state)
            outputs.append(output[:, None])
        dropped = Tensor(np.zeros((like.shape[0], S - kept, *like.shape[2:])))
        return {self.output: tape.concatenate([*outputs, dropped], 1), **steps.end(state)}


CHUNKS = (128, 64, 32, 16, 8)
Named = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Forms:
    """The formulas of an operation, each of which differs from the definition in the choices that it names.

    Attributes:
        definition: the form of the definition, from which the others are made by changes.
        gradients: changes of the gradient alone.
        values: changes of the value.
        families: changes of the value by a number, some of its usual values.
        rounding: changes of the value by rounding.
        vanishing: changes by which something is rounded to 0, with features as in `Formula.nan_at`.
        idle: choices that do not matter in calls of the operation.
        axis: ``(name, arrays) → axis`` of 1 that an array of the operation lacks and one of the recurrence has; None
            if it lacks none.
        assumed: the changes that the options of a call make, unless a formula makes another one.
    """

    definition: Form
    gradients: tuple[Named, ...]
    values: tuple[Named, ...]
    families: tuple[Named, ...] = ()
    rounding: tuple[Named, ...] = ()
    vanishing: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...] = ()
    idle: frozenset[str] = frozenset()
    axis: Callable[[str, Values], int | None] = lambda name, arrays: None
    assumed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda options: {}

    def compute(
        self, change: Mapping[str, Any], arrays: Values, options: Mapping[str, Any], cotangents: Values | None
    ) -> Computed:
        """Return outputs and gradients of the form with a change, as `Formula.compute` does."""
        form = replace(self.definition, **{**self.assumed(options), **change})

        def reshaped(name: str, x: np.ndarray, change: Callable) -> np.ndarray:
            axis = self.axis(name, arrays)
            return x if axis is None else change(x, axis)

        def wide(values: Values) -> Computed:
            return {name: reshaped(name, x, np.expand_dims) for name, x in values.items()}

        def narrow(name: str, x: np.ndarray) -> np.ndarray:
            return reshaped(name, x, np.squeeze)

        inputs = {name: Tensor(x) for name, x in wide(arrays).items() if name != "cu_seqlens"}
        with np.errstate(all="ignore"):
            outputs = form.outputs(inputs, arrays.get("cu_seqlens"), options)
            found = {name: narrow(name, x.value) for name, x in outputs.items()}
            if cotangents is not None:
                passed = {name: d for name, d in wide(cotangents).items() if form.passes(name)}
                gradients = tape.gradients(outputs, passed, inputs)
                found |= {f"gradient of {name}": narrow(name, gradient) for name, gradient in gradients.items()}
        return found

    def formulas(self, chunk_size: int | None = None) -> tuple[Formula, ...]:
        """Return all formulas.

        Args:
            chunk_size: the chunk size of the call, which may be the length of dropped chunks.
        """
        found = [self._formula(name, change, changes_value=False) for name, change in self.gradients]
        found += [self._formula(name, change) for name, change in self.values]
        for chunk in dict.fromkeys((*((chunk_size,) if chunk_size else ()), *CHUNKS)):
            name = f"the formula with the last partial chunk dropped (chunks of {chunk})"
            found.append(self._formula(name, {"chunk": chunk}))
        found += [self._formula(name, change, alone=True) for name, change in self.families]
        for dtype in ("bfloat16", "float16"):
            name = f"the formula with the state kept in {dtype}"
            found.append(self._formula(name, {"state_dtype": dtype}, noisy=True, occasional=True))
        found += [self._formula(name, change, noisy=True) for name, change in self.rounding]
        found += [self._formula(name, change, noisy=True, nan_at=at) for name, change, at in self.vanishing]
        return tuple(formula for formula in found if not self.idle & set(formula.change))

    def ranged(self, above: int | None, factor: int | None, bound: float | None) -> list[Formula]:
        """Return the formulas that `conformance.formulas.ranged` describes."""
        found = []
        if factor is not None and "chunk" not in self.idle:
            name = f"the formula with the last partial chunk dropped (chunks of {factor}) in sequences of more than"
            found.append((f"{name} {above or 0} steps", {"chunk": factor, "above": above or 0}))
        if bound is not None and bound < 0 and hasattr(self.definition, "least"):
            found.append(clamped(bound))
        return [self._formula(name, change, alone=True) for name, change in found]

    def combined(self, first: Formula, second: Formula) -> Formula | None:
        """Return both changes at once; None if they concern the same choice."""
        if set(first.change) & set(second.change):
            return None
        return self._formula(
            f"{first.name} and {second.name.removeprefix('the ')}",
            {**first.change, **second.change},
            changes_value=first.changes_value or second.changes_value,
            noisy=first.noisy or second.noisy,
            occasional=first.occasional or second.occasional,
        )

    def _formula(self, name: str, change: Mapping[str, Any], *, changes_value: bool = True, **kinds: Any) -> Formula:
        compute = partial(self.compute, change)
        return Formula(name=name, compute=compute, changes_value=changes_value, change=change, **kinds)


def clamped(least: float) -> Named:
    """The formula whose log gates are at least a number."""
    return f"the formula with log σ(f) clamped at {least:g}".replace("-", "−"), {"least": least}
