"""Scans and decay: linear (in the log gates), so that the sum of the magnitudes of all terms is known exactly."""

from collections.abc import Callable

import numpy as np

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.tolerance.budget import Expected, Precision

_SUMS: dict[str, tuple[str, Callable, Callable, str]] = {
    "rev_cumsum": ("x", reference.rev_cumsum, reference.rev_cumsum_backward, "dy"),
    "rev_cumsum_off": ("x", reference.rev_cumsum_off, reference.rev_cumsum_off_backward, "dy"),
    "causal_forget_matrix": (
        "forget_gates",
        reference.causal_forget_matrix,
        reference.causal_forget_matrix_backward,
        "dF",
    ),
}


def sums(operation: str, arrays: Values, precision: Precision) -> Expected:
    """Value of `rev_cumsum`, `rev_cumsum_off` or `causal_forget_matrix`; each element may be off by γ·Σ|terms|."""
    name, forward, _, _ = _SUMS[operation]
    x = arrays[name]
    magnitude = np.where(np.isfinite(x), np.abs(x), 0.0)
    y, scale = forward(x), forward(magnitude)
    return Expected({"y": y}, {"y": precision.growth * np.where(np.isfinite(scale), scale, 0.0)})


def sums_gradient(operation: str, arrays: Values, cotangents: Values, precision: Precision) -> Expected:
    name, _, backward, keyword = _SUMS[operation]
    gradient = backward(arrays[name], **{keyword: cotangents["y"]})[name]
    scale = backward(arrays[name], **{keyword: np.abs(cotangents["y"])})[name]
    return Expected({name: gradient}, {name: precision.growth * scale})


@without_warnings
def dtilde(arrays: Values, precision: Precision) -> Expected:
    i, f = arrays["igate"], arrays["fgate"]
    y = reference.dtilde_matrix(i, f)
    log_gate = np.logaddexp(0.0, -np.where(np.isfinite(f), f, 0.0))
    scale = reference.causal_forget_matrix(log_gate[..., 0]) + np.abs(np.where(np.isfinite(i), i, 0.0)).mT
    return Expected({"y": y}, {"y": precision.growth * np.where(np.isfinite(scale), scale, 0.0)})


@without_warnings
def dtilde_gradient(arrays: Values, cotangents: Values, precision: Precision) -> Expected:
    i, f = arrays["igate"], arrays["fgate"]
    exact = reference.dtilde_matrix_backward(i, f, dD=cotangents["y"])
    scale = reference.dtilde_matrix_backward(i, f, dD=np.abs(cotangents["y"]))
    # σ(−f) is computed from f in the accumulation dtype: its relative error is u·|f| where it is small.
    conditioning = 1 + np.where(np.isfinite(f), np.maximum(f, 0.0), 0.0)
    slack = {"igate": precision.growth * scale["igate"], "fgate": precision.growth * scale["fgate"] * conditioning}
    # σ(−f) below the smallest normal number counts as 0, and is multiplied by sums of cotangents.
    least = precision.least * float(np.abs(cotangents["y"]).max(initial=1.0))
    return Expected(exact, {name: np.where(x > 0, x + least, x) for name, x in slack.items()})
