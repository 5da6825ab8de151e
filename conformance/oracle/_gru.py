"""The GRU on copies along the head axis, because its weights are shared by the whole batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._gru_magnitudes import gru_gradient_magnitudes, gru_magnitudes
from conformance.tolerance import budget
from conformance.tolerance.budget import DRAWS, Expected, Precision


def _axis(name: str) -> int:
    return 0 if name.endswith(("weight", "bias")) else -2


def _copies(arrays: Values, cotangents: Values, precision: Precision) -> tuple[dict[str, Any], dict[str, Any], int]:
    rng = np.random.default_rng(0)
    N = max(x.shape[_axis(name)] for name, x in arrays.items())

    def copies(name: str, x: np.ndarray) -> np.ndarray:
        # Heads are expanded first: each head that reads a shared input or weight rounds separately, and so does their
        # sum.
        axis = _axis(name)
        x = np.repeat(x, N // x.shape[axis], axis=axis)
        if name in ("input", "forget_input", "reset_input"):
            draws = budget.perturbed_gates(x, precision, rng, 0.0)
        else:
            draws = budget.perturbed_operands(x, precision, rng)
        return np.concatenate([x, *draws], axis=axis)

    return (
        {name: copies(name, x) for name, x in arrays.items()},
        {name: copies(name, x) for name, x in cotangents.items()},
        N,
    )


def _split(name: str, stacked: np.ndarray, heads: int, N: int) -> tuple[np.ndarray, np.ndarray]:
    """Separate the copies and sum the heads of a group: ``(exact, draws)``."""
    axis = _axis(name) % stacked.ndim
    shape = stacked.shape
    apart = stacked.reshape(*shape[:axis], 1 + DRAWS, heads, N // heads, *shape[axis + 1 :]).sum(axis=axis + 2)
    apart = np.moveaxis(apart, axis, 0)
    return apart[0], apart[1:]


@without_warnings
def gru(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `gru`, dense or packed."""
    arrays, cu_seqlens = _without_packing(arrays)
    copies, _, N = _copies(arrays, {}, precision)
    after = bool(options.get("reset_after"))
    y, state = reference.gru(**copies, cu_seqlens=cu_seqlens, reset_after=after)
    terms = gru_magnitudes(arrays, _split("y", y, N, N)[0], cu_seqlens, after)
    exact, slack = {}, {}
    for name, stacked in (("y", y), ("state", state)):
        exact[name], draws = _split(name, stacked, N, N)
        steps = y.ndim - 3 if name == "y" else None
        slack[name] = budget.response(exact[name], draws, steps=steps) + _rounded(terms, name, precision)
    return Expected(exact, slack)


def _rounded(terms: dict, name: str, precision: Precision) -> np.ndarray | float:
    """The error due to products of 16-bit operands and to everything that is carried; 0 without a sequence."""
    if name not in terms:
        return 0.0
    products, drift = terms[name]
    return precision.cancellation * products + precision.drift * drift


@without_warnings
def gru_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `gru`. The results include ``input_state`` whether or not one was given."""
    arrays, cu_seqlens = _without_packing(arrays)
    heads = {name: x.shape[_axis(name)] for name, x in arrays.items()}
    copies, dcopies, N = _copies(arrays, cotangents, precision)
    if "input_state" not in copies:
        copies["input_state"] = np.zeros(dcopies["state"].shape)
    after = bool(options.get("reset_after"))
    y, _ = reference.gru(**copies, cu_seqlens=cu_seqlens, reset_after=after)
    gradients = reference.gru_backward(
        **copies,
        gradient_clipping=options.get("gradient_clipping"),
        cu_seqlens=cu_seqlens,
        reset_after=after,
        dy=dcopies["y"],
        dstate=dcopies["state"],
    )
    exact_y = _split("y", y, N, N)[0]
    clipping = options.get("gradient_clipping")
    terms = gru_gradient_magnitudes(arrays, exact_y, cotangents, clipping, cu_seqlens, after)
    exact, slack = {}, {}
    for name, stacked in gradients.items():
        exact[name], draws = _split(name, stacked, heads.get(name, N), N)
        steps = y.ndim - 3 if name.endswith("input") else None
        slack[name] = budget.response(exact[name], draws, steps=steps) + _rounded(terms, name, precision)
    return Expected(exact, slack)


def _without_packing(arrays: Values) -> tuple[Values, np.ndarray | None]:
    arrays = dict(arrays)
    return arrays, arrays.pop("cu_seqlens", None)
