"""The moving average: linear in all but the decay, so the sum of the magnitudes of all terms is known exactly."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values
from conformance.tolerance.budget import Expected, Precision


def ema(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    y, last = reference.ema(arrays["x"], arrays["decay"], arrays.get("initial"))
    scale, of_last = _magnitudes(arrays)
    return Expected({"y": y, "last": last}, {"y": precision.growth * scale, "last": precision.growth * of_last})


def ema_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    x, a, initial = arrays["x"], arrays["decay"], arrays.get("initial")
    exact = reference.ema_backward(x, a, initial, dy=cotangents["y"], dlast=cotangents["last"])
    y, _ = _magnitudes(arrays)
    g = np.abs(cotangents["last"])
    start = np.zeros(g.shape) if initial is None else np.abs(initial)
    of_x, of_decay = np.zeros(x.shape), np.zeros(a.shape)
    for t in reversed(range(x.shape[1])):
        g = g + np.abs(cotangents["y"][:, t])
        of_x[:, t] = (1 - a) * g
        of_decay += (g * ((y[:, t - 1] if t else start) + np.abs(x[:, t]))).sum(axis=0)
        g = a * g
    slack = {"x": of_x, "decay": of_decay, "initial": g}
    return Expected(exact, {name: precision.growth * each for name, each in slack.items()})


def _magnitudes(arrays: Values) -> tuple[np.ndarray, np.ndarray]:
    initial = arrays.get("initial")
    return reference.ema(np.abs(arrays["x"]), arrays["decay"], None if initial is None else np.abs(initial))
