"""Formulas: functions that are computed in place of the definition, each with its name in words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Mapping[str, np.ndarray]
Computed = dict[str, np.ndarray]
Compute = Callable[[Values, Mapping[str, Any], Values | None], Computed]


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Another function than the definition.

    Attributes:
        name: what is different, as it follows "equals": ``the gradient with the normaliser held constant``.
        compute: ``(arrays, options, cotangents) → outputs`` and, where there are cotangents, gradients under
            ``gradient of q``. Arrays as in a call of the operation.
        changes_value: whether outputs differ from the definition's; otherwise only gradients do.
        change: the choices in which it differs, by which two formulas are combined.
        noisy: whether it rounds, so that a target that does the same is near it and not equal to it.
    """

    name: str
    compute: Compute
    changes_value: bool
    change: Mapping[str, Any]
    noisy: bool = False


def no_formulas(chunk_size: int | None) -> tuple[Formula, ...]:
    return ()


def no_pair(first: Formula, second: Formula) -> Formula | None:
    return None
