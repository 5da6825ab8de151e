"""GRUs whose answer is known without the recurrence: checks of laws in `gru`. The oracle gives their tolerance."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected
from conformance.cases import GRUCase
from conformance.checker import Checker, LawError
from conformance.dtypes import Array
from conformance.laws._answers import expected_gradient, expected_value, has_gradient
from conformance.laws._relations import alike, close, results_of
from conformance.operations.gru import GRU
from conformance.oracle import Values


def expanded(name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """The array with all heads expanded: head n of N is head ``n // (N/N′)`` of N′."""
    return np.repeat(x, heads // x.shape[GRU.head_axis[name]], axis=GRU.head_axis[name])


def grouped(name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """Transpose of `expanded`: the sum over the heads that read one of ``heads``."""
    axis = GRU.head_axis[name] % x.ndim
    return x.reshape(*x.shape[:axis], heads, x.shape[axis] // heads, *x.shape[axis + 1 :]).sum(axis=axis + 1)


def with_values(arrays: dict[str, Array], **values: float) -> dict[str, Array]:
    """The arrays, with some of them filled with one value."""
    filled = {name: replace(arrays[name], values=np.full(arrays[name].shape, x)) for name, x in values.items()}
    return {**arrays, **filled}


def grouped_heads(checker: Checker, case: GRUCase) -> None:
    arrays, N = case.arrays(checker.dtype), case.N
    written_out = {
        name: replace(x, values=expanded(name, x.values, N)) if name in GRU.head_axis else x
        for name, x in arrays.items()
    }
    cotangents, options = case.cotangent_arrays(checker.dtype), case.options()
    own, own_gradients = results_of(GRU, checker, arrays, cotangents, options)
    outputs, gradients = results_of(GRU, checker, written_out, cotangents, options)
    alike(checker, outputs, own, expected_value(GRU, checker, case), case.steps)
    if gradients is None or own_gradients is None:
        return
    of_groups = expected_gradient(GRU, checker, case)
    for name, axis in GRU.head_axis.items():
        got, heads = gradients[name], arrays[name].shape[axis]
        summed = replace(got, values=grouped(name, got.values, heads))
        slack = of_groups.slack[name] + checker.precision(1).roundoff * grouped(name, np.abs(got.values), heads)
        where, of = f"gradient of {name}", of_groups.values[name]
        close(checker, where, summed, own_gradients[name], of, slack, case.steps, times=3)


def fixed_point(checker: Checker, case: GRUCase) -> None:
    arrays = with_values(case.arrays(checker.dtype), forget_input=np.inf)
    if not checker.contract:
        # 1 − f may be rounded, or z and h may be mixed as z + f·(h − z), which returns h except for rounding.
        _within_tolerance(checker, case, arrays)
        return
    h0 = _initial(case, arrays)
    kept = np.broadcast_to(h0[:, None], (case.B, case.S, case.N, case.H))

    def bit_by_bit(outputs: dict[str, Array]) -> None:
        if not np.array_equal(outputs["y"].values, kept) or not np.array_equal(outputs["state"].values, h0):
            raise LawError("y", "a state behind a forget gate of exactly 1 changed")

    bit_by_bit(checker.call("gru", arrays, case.options()))
    if not has_gradient(GRU, checker):
        return
    cotangents = case.cotangent_arrays(checker.dtype)
    outputs, gradients = checker.vjp("gru", arrays, cotangents, case.options())
    bit_by_bit(outputs)
    for name in GRU.head_axis:
        if np.abs(gradients[name].values).max(initial=0.0) > 0:
            raise LawError(f"gradient of {name}", "is not 0 behind forget gates of exactly 1")
    if case.state:
        dy, dstate = cotangents["y"].values, cotangents["state"].values
        slack = checker.precision(case.steps).growth * (np.abs(dy).sum(axis=1) + np.abs(dstate))
        got = gradients["input_state"]
        checker.close("gradient of input_state", got, dstate + dy.sum(axis=1), slack, case.steps)


def _within_tolerance(checker: Checker, case: GRUCase, arrays: dict[str, Array]) -> None:
    """Compare a call with these arrays with the definition."""
    values, precision = oracle.values(arrays), checker.precision(case.steps)
    expected = oracle.gru(values, case.options(), precision)
    if not has_gradient(GRU, checker):
        checker.agree(checker.call("gru", arrays, case.options()), expected, case.steps)
        return
    cotangents = case.cotangent_arrays(checker.dtype)
    outputs, gradients = checker.vjp("gru", arrays, cotangents, case.options())
    checker.agree(outputs, expected, case.steps)
    of_gradient = oracle.gru_gradient(values, case.options(), oracle.values(cotangents), precision)
    checker.agree(gradients, of_gradient, case.steps, of="gradient of ", only=GRU.differentiable(arrays))


def _agree(
    checker: Checker,
    case: GRUCase,
    arrays: dict[str, Array],
    outputs: Values,
    gradients: Values,
    compared: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Hold outputs and gradients to what is known of them; the oracle says how exact they have to be.

    Args:
        compared: where only some elements of a gradient have to agree, which ones; elsewhere ``gradients`` holds 0.
    """
    cotangents = case.cotangent_arrays(checker.dtype)
    values, of, precision = oracle.values(arrays), oracle.values(cotangents), checker.precision(case.steps)
    expected = Expected(outputs, oracle.gru(values, {}, precision).slack)
    if not has_gradient(GRU, checker):
        checker.agree(checker.call("gru", arrays, case.options()), expected, case.steps)
        return
    got, dgot = checker.vjp("gru", arrays, cotangents, case.options())
    checker.agree(got, expected, case.steps)
    for name, mask in (compared or {}).items():
        dgot[name] = replace(dgot[name], values=np.where(mask, dgot[name].values, 0.0))
    slack = oracle.gru_gradient(values, {}, of, precision).slack
    checker.agree(dgot, Expected(gradients, slack), case.steps, of="gradient of ", only=GRU.differentiable(arrays))


def zero_weights(checker: Checker, case: GRUCase) -> None:
    arrays = with_values(case.arrays(checker.dtype), **dict.fromkeys(GRU.weights, 0.0))
    cotangents = oracle.values(case.cotangent_arrays(checker.dtype))
    _agree(checker, case, arrays, *_closed_form(case, oracle.values(arrays), cotangents))


def _closed_form(case: GRUCase, arrays: Values, cotangents: Values) -> tuple[Values, Values]:
    """With no weights every step is h_t = f_t h_{t−1} + (1−f_t) z_t, f = σ(x_f), z = tanh(x): linear, and summed.

    With P[t,j] = Π_{j<s≤t} f_s and P[t,0] for h_0: h_t = P[t,0] h_0 + Σ_j P[t,j] (1−f_j) z_j, and what reaches h_j is
    g_j = Σ_{t≥j} P[t,j] dy_t.
    """
    N, S = case.N, case.S
    x, xf, xr = (expanded(name, arrays[name], N) for name in ("input", "forget_input", "reset_input"))
    with np.errstate(over="ignore"):
        f, r, z = 1 / (1 + np.exp(-xf)), 1 / (1 + np.exp(-xr)), np.tanh(x)
        one_minus_f = 1 / (1 + np.exp(xf))
    h0 = arrays.get("input_state", np.zeros((case.B, N, case.H)))
    P = np.zeros((S + 1, S + 1, *h0.shape))
    for j in range(S + 1):
        P[j, j] = 1
        for t in range(j + 1, S + 1):
            P[t, j] = P[t - 1, j] * f[:, t - 1]
    written = np.concatenate([h0[None], np.moveaxis(one_minus_f * z, 1, 0)])
    h = np.einsum("tjbnh,jbnh->btnh", P, written)
    dh = np.concatenate([0 * h0[None], np.moveaxis(cotangents["y"], 1, 0)])
    dh[S] += cotangents["state"]
    g = np.einsum("tjbnh,tbnh->bjnh", P, dh)
    before, g_t = h[:, :-1], g[:, 1:]
    dx, dxf = g_t * one_minus_f * (1 - z * z), g_t * (before - z) * f * one_minus_f
    full = {
        "input": dx,
        "weight": np.einsum("btni,btnj->nij", r * before, dx),
        "forget_input": dxf,
        "forget_weight": np.einsum("btni,btnj->nij", before, dxf),
        "reset_input": 0 * dx,
        "reset_weight": np.zeros((N, case.H, case.H)),
    }
    gradients = {name: grouped(name, d, arrays[name].shape[GRU.head_axis[name]]) for name, d in full.items()}
    return {"y": h[:, 1:], "state": h[:, -1]}, {**gradients, "input_state": g[:, 0]}


def candidate(checker: Checker, case: GRUCase) -> None:
    arrays = with_values(case.arrays(checker.dtype), forget_input=-np.inf, weight=0.0)
    x, cotangents = expanded("input", arrays["input"].values, case.N), case.cotangent_arrays(checker.dtype)
    last = np.tanh(x[:, -1]) if case.S else _initial(case, arrays)
    values, precision = oracle.values(arrays), checker.precision(case.steps)
    expected = Expected({"y": np.tanh(x), "state": last}, oracle.gru(values, {}, precision).slack)
    if not has_gradient(GRU, checker):
        checker.agree(checker.call("gru", arrays, case.options()), expected, case.steps)
        return
    outputs, gradients = checker.vjp("gru", arrays, cotangents, case.options())
    checker.agree(outputs, expected, case.steps)
    if case.state and case.S:
        of_state, where = gradients["input_state"], "gradient of input_state"
        if checker.contract:
            if np.abs(of_state.values).max(initial=0.0) > 0:
                raise LawError(where, "is not 0 behind forget gates of exactly 0 and a weight of 0")
        else:
            room = oracle.gru_gradient(values, {}, oracle.values(cotangents), precision).slack["input_state"]
            checker.close(where, of_state, np.zeros(of_state.shape), room, case.steps)
    through = cotangents["y"].values.copy()
    through[:, -1:] += cotangents["state"].values[:, None]
    heads = arrays["input"].shape[-2]
    slack = oracle.gru_gradient(values, {}, oracle.values(cotangents), precision).slack["input"]
    exact = grouped("input", through * (1 - np.tanh(x) ** 2), heads)
    checker.close("gradient of input", gradients["input"], exact, slack, case.steps)


def torch_layer(checker: Checker, case: GRUCase) -> None:
    layer: Any = importlib.import_module("conformance.frameworks.torch_gru")
    arrays, cotangents = dict(case.arrays(checker.dtype)), oracle.values(case.cotangent_arrays(checker.dtype))
    diagonal = np.eye(case.H, dtype=bool)
    arrays["weight"] = replace(arrays["weight"], values=np.where(diagonal, arrays["weight"].values, 0.0))
    # r⊙(hW) and (r⊙h)W are one function of a diagonal W, and only there: the gradient off the diagonal is another's.
    known = layer.outputs_and_gradients(oracle.values(arrays), cotangents, case.N)
    _agree(checker, case, arrays, *known, compared={"weight": diagonal})


def state_accumulation(checker: Checker, case: GRUCase) -> None:
    # Without weights there is no product whose operand could be rounded: only the carried state remains.
    arrays = with_values(case.arrays(checker.dtype), forget_input=4.0, **dict.fromkeys(GRU.weights, 0.0))
    precise = replace(checker.precision(case.steps), dtype="float32")
    expected = oracle.gru(oracle.values(arrays), {}, precise)
    got = checker.call("gru", arrays, case.options())
    checker.agree(got, expected, case.steps, only=("state",))


def _initial(case: GRUCase, arrays: dict[str, Array]) -> np.ndarray:
    return arrays["input_state"].values if case.state else np.zeros((case.B, case.N, case.H))
