"""The decay matrices as they are often computed instead: from differences of cumulative sums."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import reference
from conformance.formulas.formula import ACCUMULATION, Computed, Formula, Values


def compute(operation: str, arrays: Values, options: Mapping[str, Any], cotangents: Values | None) -> Computed:
    """Output of a decay matrix, and the gradient of the definition: that of the differences is as exact."""
    if operation == "causal_forget_matrix":
        log_gates, write = arrays["forget_gates"], 0.0
    else:
        log_gates, write = -np.logaddexp(0.0, -arrays["fgate"][..., 0]), arrays["igate"][..., None, :, 0]
    sums = np.cumsum(log_gates, axis=-1).astype(options.get(ACCUMULATION, "float64")).astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = sums[..., :, None] - sums[..., None, :] + write
    lower = np.tril(np.ones(differences.shape[-2:], bool))
    found = {"y": np.where(lower, differences, -np.inf)}
    if cotangents is not None:
        name = "dF" if operation == "causal_forget_matrix" else "dD"
        gradients = getattr(reference, f"{operation}_backward")(**arrays, **{name: cotangents["y"]})
        found |= {f"gradient of {key}": gradient for key, gradient in gradients.items()}
    return found


FORMULAS = {
    operation: (
        Formula(
            name="the formula with differences of cumulative sums",
            compute=partial(compute, operation),
            changes_value=True,
            change={"differences": True},
            noisy=True,
            nan_at=("infinite gates",),
        ),
    )
    for operation in ("causal_forget_matrix", "dtilde_matrix")
}
"""The formulas of each decay matrix."""
