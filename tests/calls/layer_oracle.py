"""The correct results of a `GRU` layer: projection, `reference.gru`, projection, and the gradient of all three."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference
from conformance.oracle import Values
from conformance.tolerance.budget import Expected

PROJECTED = ("input", "forget_input", "reset_input")
AS_GIVEN = ("input_state", "recurrent_bias", "cu_seqlens")
WEIGHTS = {"weight": "state_weight", "forget_weight": "forget_weight", "reset_weight": "reset_weight"}
TOLERANCE = {"float64": 1e-11, "float32": 1e-4}
"""Largest error of an array, as a part of its largest element. The recurrence has laws of its own, with tolerances that
are measured; here a wrong projection shows."""


def gru_layer(
    values: Values, heads: tuple[int, int, int], cotangents: Values, options: Mapping[str, Any], dtype: str
) -> Expected:
    """Outputs ``output`` and ``state``, and the gradient of everything in ``values``.

    Args:
        values: ``input``, ``input_state`` and ``cu_seqlens`` if there are any, and the parameters by their paths.
        heads: the head counts of the three inputs, in the order x, f, r.
        options: the options of `gru`.
        dtype: in which the layer computes.
    """
    H = values["state_weight"].shape[-1]
    projected = values["input"] @ values["input_projection.kernel"] + values.get("input_projection.bias", 0.0)
    parts = projected.reshape(*projected.shape[:-1], sum(heads), H)
    split = np.split(parts, np.cumsum(heads)[:-1], axis=-2)
    arrays: dict[str, Any] = {
        **dict(zip(PROJECTED, split, strict=True)),
        **{name: values[path] for name, path in WEIGHTS.items()},
        **{name: values[name] for name in AS_GIVEN if name in values},
    }
    after = options.get("reset_after", False)
    y, state = reference.gru(**arrays, reset_after=after)
    flat = y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])
    kernel = values["output_projection.kernel"]
    results = {"output": flat @ kernel + values.get("output_projection.bias", 0.0), "state": state}
    gradients = reference.gru_backward(
        **arrays,
        gradient_clipping=options.get("gradient_clipping"),
        reset_after=after,
        dy=(cotangents["output"] @ kernel.T).reshape(y.shape),
        dstate=cotangents["state"],
    )
    results |= _pulled_back(values, flat, gradients, cotangents["output"])
    slack = {name: np.full(x.shape, TOLERANCE[dtype] * np.abs(x).max(initial=1.0)) for name, x in results.items()}
    return Expected(results, slack)


def _pulled_back(values: Values, flat: np.ndarray, gradients: Values, doutput: np.ndarray) -> Values:
    """The gradients of the layer's own arrays, given those of the recurrence."""
    joined = np.concatenate([gradients[name] for name in PROJECTED], axis=-2)
    dheads = joined.reshape(*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])
    tokens = tuple(range(dheads.ndim - 1))
    found = {
        "input": dheads @ values["input_projection.kernel"].T,
        "input_projection.kernel": np.tensordot(values["input"], dheads, (tokens, tokens)),
        "input_projection.bias": dheads.sum(axis=tokens),
        "output_projection.kernel": np.tensordot(flat, doutput, (tokens, tokens)),
        "output_projection.bias": doutput.sum(axis=tokens),
        **{path: gradients[name] for name, path in WEIGHTS.items()},
        **{name: gradients[name] for name in AS_GIVEN if name in gradients},
    }
    return {f"gradient of {name}": x for name, x in found.items() if name in values}
