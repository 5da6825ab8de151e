"""The moving average: every step may round its terms and its gate, and what is carried decays with it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values
from conformance.tolerance.budget import Expected, Precision


def ema(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    y, last = reference.ema(arrays["x"], arrays["f"], arrays.get("initial"))
    terms, a = _terms(arrays), _gate(arrays["f"])
    off, carried = np.zeros(y.shape), np.zeros(last.shape)
    for t in range(y.shape[1]):
        carried = off[:, t] = a[:, t] * carried + precision.growth * terms[:, t]
    return Expected({"y": y, "last": last}, {"y": off, "last": carried})


def ema_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    x, a = arrays["x"], _gate(arrays["f"])
    exact = reference.ema_backward(x, arrays["f"], arrays.get("initial"), dy=cotangents["y"], dlast=cotangents["last"])
    terms, off, g = _terms(arrays), ema(arrays, options, precision).slack["y"], np.abs(cotangents["last"])
    of_g, of_x, of_f = np.zeros(g.shape), np.zeros(x.shape), np.zeros(x.shape)
    for t in reversed(range(x.shape[1])):
        g = g + np.abs(cotangents["y"][:, t])
        of_x[:, t] = of_g = of_g + precision.growth * g
        of_f[:, t] = a[:, t] * (1 - a[:, t]) * (2 * of_g * terms[:, t] + g * (off[:, t - 1] if t else 0.0))
        g, of_g = a[:, t] * g, a[:, t] * of_g
    return Expected(exact, {"x": of_x, "f": of_f, "initial": of_g})


def _gate(f: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -f))


def _terms(arrays: Values) -> np.ndarray:
    """The magnitudes of what each step adds up: the average before it, and x."""
    x, initial = np.abs(arrays["x"]), arrays.get("initial")
    start = np.zeros((x.shape[0], x.shape[2])) if initial is None else np.abs(initial)
    y, _ = reference.ema(x, arrays["f"], start)
    return np.concatenate([start[:, None], y], axis=1)[:, :-1] + x
