"""The GRU as kernels compute it, and its backward pass.

A sigmoid by tanh is not among them: it is off by a roundoff of 1, so behind shut gates no digit of it is right.

Heads are written out: inputs ``(B, S, N, H)``, weights ``(N, H, H)``, state ``(B, N, H)``. A call with a bias,
``(N, H)``, has the reset gate after the recurrent product; one without has it before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operations import Operation
from tests.suite.calibration.arithmetic import (
    Arithmetic,
    Sum,
    compensated_sum,
    pairwise_sum,
    plain_sum,
    sequential_sum,
    sigmoid,
    two_sum,
)

Values = dict[str, np.ndarray]
SHARED = ("weight", "forget_weight", "reset_weight", "recurrent_bias")
"""The arguments that all sequences share."""


@dataclass(frozen=True)
class Form:
    """Choices that change the order of operations and no meaning.

    Attributes:
        blend: how h' is formed: ``products`` (f⊙h + (1−f)⊙z), ``from z`` (z + f⊙(h−z)), ``from h`` (h + (1−f)⊙(z−h)).
        product: how h W is: ``dot`` (term by term, summed as the arithmetic says), ``unit`` (a matrix unit), ``joined``
            (W_f and W_r as one matrix).
        weights: how the gradients of weights are summed: at each of the ``steps``, once at the ``end``, or in chunks of
            so many steps.
        add: how terms of a dot product are summed.
        compensated: the state carries its rounding along.
        operands: 16-bit values stay 16 bits wide as operands of products.
    """

    blend: str = "products"
    product: str = "dot"
    weights: str | int = "steps"
    add: Sum = plain_sum
    compensated: bool = False
    operands: bool = False

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        A, clip = Arithmetic(dtype, self.operands, self.add), options["gradient_clipping"]
        N = arrays["input_state"].shape[1]
        x = {
            name: np.repeat(part, N // part.shape[_axis(name)], axis=_axis(name)).astype(A.type)
            for name, part in arrays.items()
        }
        y, kept = forward(x, self, A)
        dy, dstate = cotangents["y"].astype(A.type), cotangents["state"].astype(A.type)
        d, of_weights, dh = backward(x, kept, dy, dstate, np.inf if clip is None else abs(clip), self, A)
        d |= {name: A.add(part, 0) for name, part in of_weights.items()}
        gradients = {name: _grouped(name, part, arrays[name].shape[_axis(name)], A) for name, part in d.items()}
        last = y[:, -1] if y.shape[1] else x["input_state"]
        return {"y": y, "state": last}, {**gradients, "input_state": dh}


FORMS: Mapping[str, Form] = {
    "sequential": Form(add=sequential_sum),
    "pairwise": Form(add=pairwise_sum, weights="end"),
    "compensated": Form(add=compensated_sum, compensated=True),
    "fused, one product for both gates": Form(product="joined", blend="from z", weights="end"),
    "blended from h, chunkwise weight gradients, L = 8": Form(blend="from h", weights=8, add=pairwise_sum),
    "matrix unit, chunkwise weight gradients, L = 16": Form(product="unit", weights=16),
    "matrix unit, chunkwise weight gradients, L = 100": Form(product="unit", blend="from z", weights=100),
    "16-bit operands": Form(product="unit", weights="end", operands=True),
}


def _times(h: np.ndarray, W: np.ndarray, form: Form, A: Arithmetic) -> np.ndarray:
    """Row vectors ``(B, N, H)`` times ``(N, H, ·)``."""
    h = A.operand(h)
    if form.product == "dot":
        return A.add(h[..., :, None] * W, 2)
    return (np.moveaxis(h, 0, 1) @ W).swapaxes(0, 1)


def _gates(h: np.ndarray, xf: np.ndarray, xr: np.ndarray, Wf: np.ndarray, Wr: np.ndarray, form: Form, A: Arithmetic):
    if form.product == "joined":
        both = _times(h, np.concatenate([Wf, Wr], axis=-1), form, A)
        f, r = np.split(both, 2, axis=-1)
        return sigmoid(f + xf), sigmoid(r + xr)
    return sigmoid(_times(h, Wf, form, A) + xf), sigmoid(_times(h, Wr, form, A) + xr)


def forward(x: Values, form: Form, A: Arithmetic) -> tuple[np.ndarray, list[tuple]]:
    """Every state, ``(B, S, N, H)``, and the residuals of each step for the backward pass."""
    h, lost = x["input_state"], np.zeros_like(x["input_state"])
    y, kept = np.zeros((h.shape[0], x["input"].shape[1], *h.shape[1:]), A.type), []
    for t in range(y.shape[1]):
        f, r = _gates(
            h, x["forget_input"][:, t], x["reset_input"][:, t], x["forget_weight"], x["reset_weight"], form, A
        )
        if "recurrent_bias" in x:
            p = _times(h, x["weight"], form, A) + x["recurrent_bias"]
            z = np.tanh(r * p + x["input"][:, t])
        else:
            p, z = None, np.tanh(_times(r * h, x["weight"], form, A) + x["input"][:, t])
        kept.append((h, f, r, z, p))
        if form.compensated:
            h, error = two_sum(f * h, (1 - f) * z)
            lost = f * lost + error
            y[:, t] = h + lost
            continue
        if form.blend == "from z":
            h = z + f * (h - z)
        elif form.blend == "from h":
            h = h + (1 - f) * (z - h)
        else:
            h = f * h + (1 - f) * z
        y[:, t] = h
    return y, kept


def backward(x: Values, kept: list[tuple], dy: np.ndarray, dstate: np.ndarray, clip: float, form: Form, A: Arithmetic):
    """Gradients with heads written out; of weights and the bias as one term a sequence, ``(B, N, H, H)``."""
    dh = dstate
    W, Wf, Wr = (x[f"{name}weight"].swapaxes(-1, -2) for name in ("", "forget_", "reset_"))
    d = {name: np.zeros_like(x[name]) for name in ("input", "forget_input", "reset_input")}
    terms: dict[str, list[np.ndarray]] = {name: [] for name in ("weight", "forget_weight", "reset_weight")}
    if "recurrent_bias" in x:
        terms["recurrent_bias"] = []
    for t in reversed(range(len(kept))):
        h, f, r, z, p = kept[t]
        dh = np.clip(dh, -A.type(clip), A.type(clip)) + dy[:, t]
        dz = dh * (1 - f) * (1 - z * z)
        df = dh * (h - z) * f * (1 - f)
        if p is None:
            drh = _times(dz, W, form, A)
            dr, through, read, dproduct = drh * h * r * (1 - r), drh * r, r * h, dz
        else:
            read, dproduct = h, dz * r
            dr, through = dz * p * r * (1 - r), _times(dproduct, W, form, A)
            terms["recurrent_bias"].append(dproduct)
        dh = dh * f + through + (_times(df, Wf, form, A) + _times(dr, Wr, form, A))
        d["input"][:, t], d["forget_input"][:, t], d["reset_input"][:, t] = dz, df, dr
        for name, left, right in (("weight", read, dproduct), ("forget_weight", h, df), ("reset_weight", h, dr)):
            terms[name].append(A.operand(left)[..., :, None] * A.operand(right)[..., None, :])
        if form.weights == "steps":
            terms = {name: [sum(pending[1:], pending[0])] for name, pending in terms.items()}
        elif isinstance(form.weights, int) and (len(kept) - t) % form.weights == 0:
            head = {name: pending[: -form.weights] for name, pending in terms.items()}
            terms = {
                name: [*head[name], A.add(np.stack(pending[-form.weights :]), 0)] for name, pending in terms.items()
            }
    none = {name: np.zeros((len(dstate), *x[name].shape), A.type) for name in terms}
    return d, {name: A.add(np.stack([none[name], *pending]), 0) for name, pending in terms.items()}, dh


def _axis(name: str) -> int:
    return 0 if name in SHARED else -2


def _grouped(name: str, gradient: np.ndarray, heads: int, A: Arithmetic) -> np.ndarray:
    """The sum of what a head receives from the heads that share it."""
    axis = _axis(name) % gradient.ndim
    shape = gradient.shape
    return A.add(gradient.reshape(*shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]), axis + 1)
