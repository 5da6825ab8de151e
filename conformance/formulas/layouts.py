"""The formulas of a recurrence for calls with another layout: one step of it, and the fwbw interface of the mLSTM."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.formulas.formula import Compute, Computed, Forms, Formula, Values
from conformance.formulas.mlstm import MLSTMForm, combined, compute, formulas

TOKENS = tuple("qkvifzoh")
_GRADIENT = "gradient of "


_IDLE = {"chunk", "packed_apart", "empty_apart", "differences", "clips"}
"""Choices that do not matter in a single step."""


def step_formulas(forms: Forms, chunk_size: int | None = None) -> tuple[Formula, ...]:
    """The formulas that apply to a single step."""
    return tuple(for_step(formula) for formula in forms.formulas() if not _IDLE & set(formula.change))


def step_pair(forms: Forms, first: Formula, second: Formula) -> Formula | None:
    both = forms.combined(first, second)
    return None if both is None else for_step(both)


def for_step(formula: Formula) -> Formula:
    return replace(formula, compute=_in_layout(formula.compute, _with_steps, _without_steps))


def _with_steps(name: str, x: np.ndarray) -> np.ndarray:
    return x[:, None] if name in TOKENS else x


def _without_steps(name: str, x: np.ndarray) -> np.ndarray:
    return x[:, 0] if name in TOKENS else x


def fwbw_formulas(chunk_size: int | None = None) -> tuple[Formula, ...]:
    """The formulas for one head, with gates ``(B, T)`` or ``(B, T, 1)``."""
    kept = [formula for formula in formulas(chunk_size) if not {"packed_apart", "empty_apart"} & set(formula.change)]
    return tuple(for_fwbw(formula) for formula in kept)


def fwbw_pair(first: Formula, second: Formula) -> Formula | None:
    both = combined(first, second)
    return None if both is None else for_fwbw(both)


def for_fwbw(formula: Formula) -> Formula:
    form = replace(MLSTMForm(), **formula.change)

    def found(arrays: Values, options: Mapping[str, Any], cotangents: Values | None) -> Computed:
        config = options["config"]
        floor_is_one = not config.get("stabilize_correctly", False) and "floor" not in formula.change
        chosen = replace(form, floor="1") if floor_is_one else form
        flat = arrays["i"].ndim == 2

        def without_head(name: str, x: np.ndarray) -> np.ndarray:
            if name in ("i", "f"):
                return x[:, :, 0] if flat else x
            return x[:, :, 0] if name in TOKENS else x[:, 0]

        def of_call(values: Values, _: Mapping[str, Any], cotangents: Values | None) -> Computed:
            return compute(chosen, values, options, cotangents)

        return _in_layout(of_call, _with_head, without_head)(arrays, options, cotangents)

    return replace(formula, compute=found)


def _with_head(name: str, x: np.ndarray) -> np.ndarray:
    if name in ("i", "f"):
        return x[:, :, None] if x.ndim == 2 else x
    return x[:, :, None] if name in TOKENS else x[:, None]


def _in_layout(
    compute: Compute, to: Callable[[str, np.ndarray], np.ndarray], back: Callable[[str, np.ndarray], np.ndarray]
) -> Compute:
    def computed(arrays: Values, options: Mapping[str, Any], cotangents: Values | None) -> Computed:
        given = {name: to(name, x) for name, x in arrays.items()}
        reached = None if cotangents is None else {name: to(name, x) for name, x in cotangents.items()}
        found = compute(given, options, reached)
        return {name: back(name.removeprefix(_GRADIENT), x) for name, x in found.items()}

    return computed
