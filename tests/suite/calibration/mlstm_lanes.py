"""Calls of the mLSTM, its step and its fwbw interface as lanes, and the forms in which the variants compute them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operations import Operation
from tests.suite.calibration import variants_mlstm as forward
from tests.suite.calibration import variants_mlstm_backward as back
from tests.suite.calibration.arithmetic import (
    Arithmetic,
    Sum,
    compensated_sum,
    pairwise_sum,
    plain_sum,
    sequential_sum,
)
from tests.suite.calibration.variants_mlstm import Lanes, Style

Values = dict[str, np.ndarray]
TOKENS = (*"qkvif", "h")
QUADRATIC = 4
"""Lanes that the parallel form takes at a time where a sequence is long: its matrices are S by S."""


@dataclass(frozen=True)
class MLSTMForm:
    """A variant.

    Attributes:
        order: ``steps``, ``segments`` or ``chunks``.
        L: of chunks; None is all steps in one.
        closed: whether forget gates' gradients come from sums of what those of q and k are.
    """

    order: str
    L: int | None = None
    style: Style = forward.PLAIN
    add: Sum = plain_sum
    operands: bool = False
    closed: bool = False

    def answers(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        return run_mlstm(self, arrays, cotangents, dtype, options["eps"], options["floor_is_one"])


MLSTM_FORMS: Mapping[str, MLSTMForm] = {
    "sequential": MLSTMForm("steps", add=sequential_sum),
    "sequential, fused order": MLSTMForm("steps", style=Style(base_two=True, reciprocal=True, scaled="k")),
    "compensated": MLSTMForm("steps", style=Style(compensated=True), add=compensated_sum),
    "pairwise, a tree of segments": MLSTMForm("segments", add=pairwise_sum),
    "chunkwise, L = 16": MLSTMForm("chunks", 16, style=Style(reciprocal=True)),
    "chunkwise, L = 64": MLSTMForm("chunks", 64, style=Style(base_two=True, scaled="scores")),
    "chunkwise, L = 100": MLSTMForm("chunks", 100, style=Style(scaled="k"), add=pairwise_sum),
    "parallel": MLSTMForm("chunks"),
    "16-bit operands, steps": MLSTMForm("steps", operands=True, style=Style(scaled="scores")),
    "16-bit operands, chunkwise, L = 32": MLSTMForm("chunks", 32, operands=True, style=Style(base_two=True)),
}

CLOSED_FORMS: Mapping[str, MLSTMForm] = {
    "closed form, steps": MLSTMForm("steps", add=sequential_sum, closed=True),
    "closed form, chunkwise, L = 64": MLSTMForm("chunks", 64, style=Style(reciprocal=True), closed=True),
    "closed form, parallel": MLSTMForm("chunks", closed=True),
    "closed form, 16-bit operands, chunkwise, L = 32": MLSTMForm("chunks", 32, operands=True, closed=True),
}

STEP_FORMS: Mapping[str, MLSTMForm] = {
    "sequential": MLSTMForm("steps", add=sequential_sum),
    "fused order": MLSTMForm("steps", style=Style(base_two=True, reciprocal=True, scaled="k")),
    "compensated": MLSTMForm("steps", style=Style(compensated=True), add=compensated_sum),
    "pairwise, a tree of segments": MLSTMForm("segments", add=pairwise_sum),
    "parallel, by scores": MLSTMForm("chunks"),
    "parallel, fused order": MLSTMForm("chunks", style=Style(base_two=True, reciprocal=True, scaled="scores")),
    "16-bit operands": MLSTMForm("steps", operands=True, style=Style(scaled="scores")),
    "16-bit operands, by scores": MLSTMForm("chunks", operands=True, style=Style(base_two=True)),
}


def to_lanes(name: str, x: np.ndarray) -> np.ndarray:
    """``(B, S, N, ·)`` or ``(B, N, ·)`` with B and N as one axis."""
    if name in TOKENS:
        x = np.moveaxis(x, 2, 1)
    return np.ascontiguousarray(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))


def from_lanes(name: str, x: np.ndarray, N: int) -> np.ndarray:
    x = x.reshape(x.shape[0] // N, N, *x.shape[1:])
    return np.moveaxis(x, 1, 2) if name in TOKENS else x


def run_mlstm(
    form: MLSTMForm, arrays: Values, cotangents: Values, dtype: str, eps: float, floor_is_one: bool
) -> tuple[Values, Values]:
    """Outputs and gradients of a dense call with its state."""
    A = Arithmetic(dtype, form.operands, form.add)
    N = arrays["q"].shape[2]
    lanes = {name: to_lanes(name, x).astype(A.type) for name, x in arrays.items()}
    d = {name: to_lanes(name, x).astype(A.type) for name, x in cotangents.items()}
    G, S = lanes["q"].shape[:2]
    few = QUADRATIC if form.order == "chunks" and form.L is None and S > 256 else max(G, 1)
    parts = []
    for start in range(0, max(G, 1), few):
        part = slice(start, start + few)
        ordered = (lanes[name][part] for name in (*"qkvif", "C0", "n0", "m0"))
        x = Lanes(*ordered, eps=eps, floor_is_one=floor_is_one)
        parts.append(_run_lanes(form, x, {name: y[part] for name, y in d.items()}, A))
    outputs, gradients = (
        {name: np.concatenate([part[at][name] for part in parts]) for name in parts[0][at]} for at in (0, 1)
    )
    return (
        {name: from_lanes(name, x, N) for name, x in outputs.items()},
        {name: from_lanes(name, x, N) for name, x in gradients.items()},
    )


def _run_lanes(form: MLSTMForm, x: Lanes, d: Values, A: Arithmetic) -> tuple[Values, Values]:
    if form.order == "chunks":
        outputs, chunks = forward.chunkwise(x, A, form.L, form.style)
        gradients = back.chunkwise_backward(x, outputs, chunks, d, A, form.style)
    else:
        walk, way_back = {
            "steps": (forward.recurrent, back.recurrent_backward),
            "segments": (forward.segments, back.segments_backward),
        }[form.order]
        outputs, states = walk(x, A, form.style)
        gradients = way_back(x, states, d, A, form.style)
    return outputs, back.closed_form(x, outputs, gradients, d, A) if form.closed else gradients
