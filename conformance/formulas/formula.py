"""Formulas: functions that are computed instead of the definition, each with its name in words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.formulas import tape
from conformance.formulas.tape import Tensor

ACCUMULATION = "accumulation"
"""Key among the options of a formula: the dtype in which the call computes, for formulas that round."""

DTYPES = "dtypes"
"""Among the options of a formula: the dtype of each array of the call, by name."""

Values = Mapping[str, np.ndarray]
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


CHUNKS = (128, 64, 32, 16, 8)
Named = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Forms:
    """The formulas of an operation, each of which differs from the definition in the choices that it names.

    Attributes:
        outputs: ``(form, inputs, cu_seqlens, options) → outputs``, each by name; arrays, packed or dense, are those of
            a call of the operation.
        definition: the form of the definition, a dataclass, from which the others are made by changes. It has the
            fields ``chunk``, ``above`` and ``state_dtype``, and ``passes(name)`` says whether an output passes its
            cotangent on.
        gradients: changes of the gradient alone.
        values: changes of the value.
        families: changes of the value by a number, some of its usual values.
        rounding: changes of the value by rounding.
        vanishing: changes by which something is rounded to 0, with features as in `Formula.nan_at`.
    """

    outputs: Callable[[Any, Mapping[str, Tensor], np.ndarray | None, Mapping[str, Any]], dict[str, Tensor]]
    definition: Any
    gradients: tuple[Named, ...]
    values: tuple[Named, ...]
    families: tuple[Named, ...] = ()
    rounding: tuple[Named, ...] = ()
    vanishing: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...] = ()

    def compute(self, form: Any, arrays: Values, options: Mapping[str, Any], cotangents: Values | None) -> Computed:
        """Return outputs and gradients of a form, as `Formula.compute` does."""
        inputs = {name: Tensor(x) for name, x in arrays.items() if name != "cu_seqlens"}
        with np.errstate(all="ignore"):
            outputs = self.outputs(form, inputs, arrays.get("cu_seqlens"), options)
            found = {name: x.value for name, x in outputs.items()}
            if cotangents is not None:
                kept = {name: d for name, d in cotangents.items() if form.passes(name)}
                gradients = tape.gradients(outputs, kept, inputs)
                found |= {f"gradient of {name}": gradient for name, gradient in gradients.items()}
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
        return tuple(found)

    def dropping(self, chunk: int, above: int) -> Formula:
        """Return the formula that drops the last partial chunk of sequences with more than ``above`` steps."""
        name = f"the formula with the last partial chunk dropped (chunks of {chunk}) in sequences of more than {above}"
        return self.changed(f"{name} steps", {"chunk": chunk, "above": above})

    def changed(self, name: str, change: Mapping[str, Any]) -> Formula:
        """Return a formula of a family."""
        return self._formula(name, change, alone=True)

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
        compute = partial(self.compute, replace(self.definition, **change))
        return Formula(name=name, compute=compute, changes_value=changes_value, change=change, **kinds)


def differences(x: np.ndarray, axis: int, dtype: str) -> np.ndarray:
    """Return each element as the difference of neighbouring running sums that are rounded to ``dtype``.

    After −∞, each such difference is −∞ − (−∞), and so is the difference of a sum with itself.
    """
    sums = np.cumsum(x, axis=axis).astype(dtype).astype(np.float64)
    with np.errstate(invalid="ignore"):
        left = np.diff(sums, axis=axis, prepend=0.0)
    return np.where(np.isneginf(sums), np.nan, left)
