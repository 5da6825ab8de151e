"""The sLSTM as kernels compute it, and its backward pass.

Preactivations are ``(B, S, N, H)``, weights ``(N, H, H)``, states ``(B, N, H)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from conformance.operations import Operation
from tests.suite.calibration.arithmetic import (
    Arithmetic,
    Sum,
    compensated_sum,
    log_sigmoid,
    pairwise_sum,
    plain_sum,
    sequential_sum,
    sigmoid,
)

Values = dict[str, np.ndarray]


class Gates(NamedTuple):
    """The activations of a step, da/du_f, the weights of memory and write, and the new m."""

    z: np.ndarray
    o: np.ndarray
    decay: np.ndarray
    gain: np.ndarray
    slope: np.ndarray
    carries: np.ndarray
    m: np.ndarray


GATES = "zifo"
STATES = ("c0", "n0", "m0", "h0")
OF_STATE = ("c", "n", "m", "last_h")


@dataclass(frozen=True)
class Form:
    """Choices that change the order of operations and no meaning.

    Attributes:
        product: how h W is: ``dot`` (term by term, summed as the arithmetic says), ``unit`` (a matrix unit), ``joined``
            (four weights as one matrix).
        decay: the log weight of the memory: ``in order`` ((a + m) − m_new), ``difference first`` ((m − m_new) + a).
        reciprocal: whether c is multiplied by 1/n.
        weights: whether the gradients of weights are summed at each of the ``steps``, or once at the ``end``.
        through_m: whether the backward pass sums the paths through the stabiliser, as automatic differentiation does.
        again: the product by which the backward pass computes the gates again; empty if it keeps them.
        add: how terms of a dot product are summed.
        operands: 16-bit values stay 16 bits wide as operands of products.
    """

    product: str = "dot"
    decay: str = "in order"
    reciprocal: bool = False
    weights: str = "steps"
    through_m: bool = False
    again: str = ""
    add: Sum = plain_sum
    operands: bool = False

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        A, clip = Arithmetic(dtype, self.operands, self.add), options["gradient_clipping"]
        named = {**arrays, **{f"d{name}": x for name, x in cotangents.items()}}
        given = {name: x.astype(A.type) for name, x in named.items()}
        return _one(self, given, options["forget_gate"] == "exp", A.type(np.inf if clip is None else abs(clip)), A)


FORMS: Mapping[str, Form] = {
    "sequential": Form(add=sequential_sum),
    "pairwise, difference first": Form(add=pairwise_sum, weights="end", decay="difference first"),
    "compensated sums, reciprocal of n": Form(add=compensated_sum, reciprocal=True),
    "four weights as one, through m": Form(product="joined", weights="end", through_m=True),
    "gates computed again in the backward pass": Form(product="unit", weights="end", again="dot", add=sequential_sum),
    "matrix unit, difference first, through m": Form(product="unit", decay="difference first", through_m=True),
    "16-bit operands": Form(product="unit", weights="end", operands=True),
    "16-bit operands, through m": Form(product="joined", weights="end", through_m=True, operands=True),
}


def _times(h: np.ndarray, W: np.ndarray, form: Form, A: Arithmetic) -> np.ndarray:
    """Row vectors ``(B, N, H)`` times ``(N, H, ·)``."""
    h = A.operand(h)
    if form.product == "dot":
        return A.add(h[..., :, None] * W, 2)
    return (np.moveaxis(h, 0, 1) @ W).swapaxes(0, 1)


def _gates(form: Form, x: Values, h: np.ndarray, m: np.ndarray, W: Values, exponential: bool, A: Arithmetic) -> Gates:
    """The gates of a step with the preactivations ``x``."""
    if form.product == "joined":
        together = np.concatenate([W[g] for g in GATES], axis=-1)
        parts = dict(zip(GATES, np.split(_times(h, together, form, A), 4, axis=-1), strict=True))
    else:
        parts = {g: _times(h, W[g], form, A) for g in GATES}
    u = {g: x[g] + parts[g] for g in GATES}
    a = u["f"] if exponential else log_sigmoid(u["f"])
    carried = a + m
    new = np.maximum(carried, u["i"])
    unit = np.maximum(new, np.finfo(A.type).min)
    log_decay = carried - unit if form.decay == "in order" else (m - unit) + a
    return Gates(
        z=np.tanh(u["z"]),
        o=sigmoid(u["o"]),
        decay=np.exp(log_decay),
        gain=np.exp(u["i"] - unit),
        slope=np.ones_like(a) if exponential else sigmoid(-u["f"]),
        carries=carried >= u["i"],
        m=new,
    )


def _one(form: Form, x: Values, exponential: bool, bound: np.floating, A: Arithmetic) -> tuple[Values, Values]:
    c, n, m, h = (x[name] for name in STATES)
    W = {g: x[f"weight_{g}"] for g in GATES}
    y, kept = np.zeros_like(x["dh"]), []
    for t in range(x["z"].shape[1]):
        gates = _gates(form, {g: x[g][:, t] for g in GATES}, h, m, W, exponential, A)
        c_new, n_new = gates.decay * c + gates.gain * gates.z, gates.decay * n + gates.gain
        divisor = np.where(n_new == 0, A.type(1), n_new)
        q = c_new * (A.type(1) / divisor) if form.reciprocal else c_new / divisor
        kept.append((c, n, m, h, divisor, n_new == 0, q, gates))
        c, n, m, h = c_new, n_new, gates.m, gates.o * q
        y[:, t] = h
    outputs = {"h": y, "c": c, "n": n, "m": m, "last_h": h}
    dc, dn, dm, dh = (x[f"d{name}"] for name in OF_STATE)
    if not form.through_m:
        dm = dm - c * dc - n * dn
    d: Values = {g: np.zeros_like(x[g]) for g in GATES}
    terms: dict[str, list[np.ndarray]] = {g: [] for g in GATES}
    transposed = {g: W[g].swapaxes(-1, -2) for g in GATES}
    for t in reversed(range(len(kept))):
        c, n, m, h, divisor, none, q, gates = kept[t]
        if form.again:
            given = {g: x[g][:, t] for g in GATES}
            gates = _gates(replace(form, product=form.again), given, h, m, W, exponential, A)
        z, o, decay, gain, slope, carries, _ = gates
        dh = np.clip(dh, -bound, bound) + x["dh"][:, t]
        dq = dh * o
        dc = dc + np.where(none, 0, dq / divisor)
        of_divisor = dh * y[:, t] if form.again else dq * q
        dn = dn - np.where(none, 0, of_divisor / divisor)
        of_decay, of_gain = decay * (c * dc + n * dn), gain * (z * dc + dn)
        if form.through_m:
            dm = dm - of_decay - of_gain
        carried = np.where(carries, dm, 0)
        du = {
            "z": gain * dc * (1 - z * z),
            "i": of_gain + (dm - carried),
            "f": (of_decay + carried) * slope,
            "o": dh * q * o * (1 - o),
        }
        dm = of_decay + carried if form.through_m else carried
        dc, dn = decay * dc, decay * dn
        dh = np.add.reduce([_times(du[g], transposed[g], form, A) for g in GATES])
        for g in GATES:
            d[g][:, t] = du[g]
            terms[g].append(A.operand(h)[..., :, None] * A.operand(du[g])[..., None, :])
        if form.weights == "steps":
            terms = {g: [sum(pending[1:], pending[0])] for g, pending in terms.items()}
    if not form.through_m:
        dm = dm + x["c0"] * dc + x["n0"] * dn
    none = np.zeros((*h.shape, h.shape[-1]), A.type)
    of_weights = {f"weight_{g}": A.add(A.add(np.stack([none, *of]), 0), 0) for g, of in terms.items()}
    return outputs, {**d, **of_weights, **dict(zip(STATES, (dc, dn, dm, dh), strict=True))}
