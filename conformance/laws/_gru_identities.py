"""GRUs whose answer is known without the recurrence. The oracle gives the tolerance of what is known."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.laws._relations import results_of
from conformance.laws.checker import Checker
from conformance.operations.gru import GRU
from conformance.oracle import Values
from conformance.tolerance.budget import Expected


def expanded(name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """The array with all heads expanded: head n of N is head ``n // (N/N′)`` of N′."""
    return np.repeat(x, heads // x.shape[GRU.head_axis[name]], axis=GRU.head_axis[name])


def grouped(name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """Transpose of `expanded`: the sum over the heads that read one of ``heads``."""
    axis = GRU.head_axis[name] % x.ndim
    return x.reshape(*x.shape[:axis], heads, x.shape[axis] // heads, *x.shape[axis + 1 :]).sum(axis=axis + 1)


def with_values(case: Any, dtype: str, **values: float) -> Call:
    """The case's call, with some of its arrays filled with one value."""
    call = GRU.call_of(case, dtype)
    given = {name: (call.arrays[name], x) for name, x in values.items() if name in call.arrays}
    return call.with_arrays(**{n: replace(array, values=np.full(array.shape, x)) for n, (array, x) in given.items()})


def initial(case: Any, call: Call) -> np.ndarray:
    return call.arrays["input_state"].values if case.state else np.zeros((case.B, case.N, case.H))


def agree(
    checker: Checker,
    call: Call,
    outputs: Values | None = None,
    gradients: Values | None = None,
    compared: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Compare outputs and gradients with those that are known, or with the oracle's where None are given.

    Args:
        compared: where only some elements of a gradient have to agree, which ones; elsewhere ``gradients`` holds 0.
    """
    values, of, precision = oracle.values(call.arrays), oracle.values(call.cotangents), checker.precision(call.steps)
    expected = GRU.value(values, {}, precision)
    got, dgot = results_of(checker, call)
    checker.agree(got, Expected(outputs or expected.values, expected.slack), call.steps)
    if dgot is None:
        return
    for name, mask in (compared or {}).items():
        dgot[name] = replace(dgot[name], values=np.where(mask, dgot[name].values, 0.0))
    exact = GRU.gradient(values, {}, of, precision)
    known, names = Expected(gradients or exact.values, exact.slack), GRU.differentiable(values)
    checker.agree(dgot, known, call.steps, of="gradient of ", only=names)


def closed_form(case: Any, arrays: Values, cotangents: Values) -> tuple[Values, Values]:
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
