"""The correct results of a `GRU` layer: projection, `reference.gru`, projection, and the gradient of all three.

The allowed error of an element is the sum of three parts: its response to inputs, parameters and intermediates that are
perturbed as described in `budget` (the preactivations also by the roundings of their own sums); the error that the
recurrence may have, multiplied by the magnitudes of the projections; and the rounding of every product of the
projections themselves.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import reference
from conformance.operations.gru import GRU
from conformance.oracle import Values
from conformance.tolerance import budget
from conformance.tolerance.budget import DRAWS, Expected, Precision

PROJECTED = ("input", "forget_input", "reset_input")
AS_GIVEN = ("input_state", "recurrent_bias", "cu_seqlens")
WEIGHTS = {"weight": "state_weight", "forget_weight": "forget_weight", "reset_weight": "reset_weight"}


def gru_layer(
    values: Values, heads: tuple[int, int, int], cotangents: Values, options: Mapping[str, Any], precision: Precision
) -> Expected:
    """Outputs ``output`` and ``state``, and the gradient of everything in ``values``.

    Args:
        values: ``input``, ``input_state`` and ``cu_seqlens`` if there are any, and the parameters by their paths.
        heads: the head counts of the three inputs, in the order x, f, r.
        options: the options of `gru`.
    """
    features, width = values["input_projection.kernel"].shape[0], values["output_projection.kernel"].shape[0]
    precision = replace(precision, steps=precision.steps + max(features, width))
    exact, recurrent = _evaluated(values, heads, cotangents, options, None)
    rng = np.random.default_rng(0)
    floating = {name: x for name, x in values.items() if name != "cu_seqlens"}
    copies = {name: budget.perturbed_operands(x, precision, rng) for name, x in floating.items()}
    dcopies = {name: budget.perturbed_operands(d, precision, rng) for name, d in cotangents.items()}
    # Preactivations are sums of products, which are rounded before a gate uses them.
    gates = budget.perturbed_gates(_heads(values), precision, rng, _heads(_magnitudes(values))) - _heads(values)
    draws = []
    for d in range(DRAWS):
        moved = {**values, **{name: x[d] for name, x in copies.items()}}
        draws.append(_evaluated(moved, heads, {n: x[d] for n, x in dcopies.items()}, options, gates[d])[0])
    carried = _carried_on(values, recurrent, cotangents, options, precision)
    slack = {}
    for name, x in exact.items():
        responses = np.stack([draw[name] for draw in draws])
        slack[name] = budget.response(x, responses) + carried[name]
    return Expected(exact, slack)


def _magnitudes(values: Values) -> Values:
    return {name: np.abs(x) if x.dtype.kind == "f" else x for name, x in values.items()}


def _heads(values: Values) -> np.ndarray:
    return values["input"] @ values["input_projection.kernel"] + values.get("input_projection.bias", 0.0)


def _evaluated(
    values: Values,
    heads: tuple[int, int, int],
    cotangents: Values,
    options: Mapping[str, Any],
    moved: np.ndarray | None,
) -> tuple[Values, Values]:
    """Outputs and gradients, and the arrays of the recurrence in between; ``moved`` is added to the preactivations."""
    H = values["state_weight"].shape[-1]
    preactivations = _heads(values) if moved is None else _heads(values) + moved
    parts = preactivations.reshape(*preactivations.shape[:-1], sum(heads), H)
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

    dy = (cotangents["output"] @ kernel.T).reshape(y.shape)
    gradients = reference.gru_backward(
        **arrays,
        gradient_clipping=options.get("gradient_clipping"),
        reset_after=after,
        dy=dy,
        dstate=cotangents["state"],
    )
    gradients = {name: x for name, x in gradients.items() if name in arrays}
    recurrent = {**arrays, "y": flat, "dy": dy}
    return {**results, **_pulled_back(values, flat, gradients, cotangents["output"])}, recurrent


def _pulled_back(values: Values, flat: np.ndarray, gradients: Values, doutput: np.ndarray) -> Values:
    """The gradients of the layer's own arrays, given those of the recurrence; linear in these and in ``doutput``."""
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


def _carried_on(
    values: Values, recurrent: Values, cotangents: Values, options: Mapping[str, Any], precision: Precision
) -> Values:
    """The effect on every result of the recurrence's error and of the rounding in the projections' products."""
    arrays = {name: x for name, x in recurrent.items() if name not in ("y", "dy")}
    value = GRU.value(arrays, options, precision)
    given = {"y": recurrent["dy"], "state": cotangents["state"]}
    gradient = GRU.gradient(arrays, options, given, precision)
    sizes, kernel = _magnitudes(values), np.abs(values["output_projection.kernel"])
    flat_slack = np.asarray(value.slack["y"]).reshape(recurrent["y"].shape) + precision.cancellation * np.abs(
        recurrent["y"]
    )
    rounded = {
        name: gradient.slack[name] + precision.cancellation * np.abs(x)
        for name, x in gradient.values.items()
        if name in arrays
    }
    of_outputs = {
        "output": flat_slack @ kernel
        + precision.cancellation * np.abs(values.get("output_projection.bias", np.zeros(kernel.shape[-1]))),
        "state": value.slack["state"],
    }
    doutput = precision.cancellation * np.abs(cotangents["output"])
    by_output = _pulled_back(sizes, np.abs(recurrent["y"]), rounded, doutput)
    by_state = _pulled_back(sizes, flat_slack, rounded, np.abs(cotangents["output"]))
    return {**of_outputs, **{name: np.maximum(x, by_state[name]) for name, x in by_output.items()}}
