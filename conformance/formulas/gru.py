"""Common wrong variants of the GRU: every choice of the definition, and its alternatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.base.dtypes import rounded
from conformance.formulas import tape
from conformance.formulas.formula import Forms, Named
from conformance.formulas.mlstm import PACKINGS
from conformance.formulas.tape import Tensor

TOKENS = ("input", "forget_input", "reset_input")
WEIGHTS = ("weight", "forget_weight", "reset_weight")


@dataclass(frozen=True, kw_only=True)
class GRUForm:
    """The choices of a variant; the defaults are the definition.

    Attributes:
        reset: ``inside`` the recurrent product, ``after`` it, or ``none``.
        forgets: whether the forget gate keeps the share f of the state; otherwise it is an update gate, which keeps 1 −
            f.
        tiled: whether shared heads are tiled (head n is n mod N′), not repeated (head n is n // (N/N′)).
        clips: ``before dy`` is added, ``after dy``, ``initial state too``, or ``never``.
        uses_state: whether the initial state is used.
        state_cotangent: whether the final state passes its cotangent on.
        transposed: whether the weights are transposed.
        swapped_gates: whether the forget and the reset gate are swapped.
        bounded: whether the candidate is bounded by tanh.
        packed_apart: whether packed sequences are kept apart.
        empty_apart: whether the final state of an empty packed sequence is its own, not that of the one before it.
        paths: the gates through which the gradient of the state passes.
        chunk: the last steps that do not fill a chunk of this length are dropped; None for none.
        above: the number of steps above which they are.
        state_dtype: the dtype to which the state is rounded after each step; None for no rounding.
    """

    reset: str = "inside"
    forgets: bool = True
    tiled: bool = False
    clips: str = "before dy"
    uses_state: bool = True
    state_cotangent: bool = True
    transposed: bool = False
    swapped_gates: bool = False
    bounded: bool = True
    packed_apart: bool = True
    empty_apart: bool = True
    paths: tuple[str, ...] = ("forget", "reset")
    chunk: int | None = None
    above: int = 0
    state_dtype: str | None = None

    def passes(self, output: str) -> bool:
        return output == "y" or self.state_cotangent


def _outputs(
    form: GRUForm, inputs: Mapping[str, Tensor], cu_seqlens: np.ndarray | None, options: Mapping[str, Any]
) -> dict[str, Tensor]:
    clipping = options.get("gradient_clipping")
    bound = np.inf if clipping is None or form.clips == "never" else abs(float(clipping))
    heads = max(inputs[name].shape[-2 if name in TOKENS else 0] for name in (*TOKENS, *WEIGHTS))
    full = {name: _full(form, inputs[name], heads, -2 if name in TOKENS else 0) for name in (*TOKENS, *WEIGHTS)}
    H = inputs["weight"].shape[-1]
    if form.transposed:
        full |= {name: tape.transpose(full[name]) for name in WEIGHTS}
    if form.swapped_gates:
        swapped = {"forget_input": "reset_input", "forget_weight": "reset_weight"}
        full |= {**{a: full[b] for a, b in swapped.items()}, **{b: full[a] for a, b in swapped.items()}}
    state = inputs.get("input_state") if form.uses_state else None
    if cu_seqlens is None:
        B = inputs["input"].shape[0]
        return _dense(form, full, state or Tensor(np.zeros((B, heads, H))), bound)
    parts, last = [], None
    state = state or Tensor(np.zeros((len(cu_seqlens) - 1, heads, H)))
    for b, (start, end) in enumerate(pairwise(int(at) for at in cu_seqlens)):
        sequence = {name: x[None, start:end] if name in TOKENS else x for name, x in full.items()}
        own = last is None or (form.packed_apart and (start < end or form.empty_apart))
        carried = state[b : b + 1] if last is None or own else last["state"]
        last = _dense(form, sequence, carried, bound)
        parts.append(last)
    if not parts:
        return {"y": full["input"], "state": state}
    joined = {"y": tape.concatenate([part["y"] for part in parts], 1)[0]}
    return {**joined, "state": tape.concatenate([part["state"] for part in parts], 0)}


def _full(form: GRUForm, x: Tensor, heads: int, axis: int) -> Tensor:
    """The array with shared heads repeated, so that each head has its own."""
    own = x.shape[axis]
    index = np.arange(heads) % own if form.tiled else np.arange(heads) // (heads // own)
    return tape.repeat(x, index, axis)


def _dense(form: GRUForm, arrays: Mapping[str, Tensor], h: Tensor, bound: float) -> dict[str, Tensor]:
    x, xf, xr = (arrays[name] for name in TOKENS)
    W, Wf, Wr = (arrays[name] for name in WEIGHTS)
    S = x.shape[1]
    steps = S if form.chunk is None or S <= form.above else S - S % form.chunk
    if form.clips == "initial state too":
        h = tape.bounded_cotangent(h, bound)
    outputs = []
    for t in range(S):
        if t >= steps:
            outputs.append(Tensor(np.zeros(h.shape)))
            continue
        read_f, read_r = (h if gate in form.paths else tape.constant(h) for gate in ("forget", "reset"))
        f = tape.sigmoid(product(read_f, Wf) + xf[:, t])
        r = tape.sigmoid(product(read_r, Wr) + xr[:, t])
        recurrent = {
            "inside": lambda h=h, r=r: product(r * h, W),
            "after": lambda h=h, r=r: r * product(h, W),
            "none": lambda h=h: product(h, W),
        }[form.reset]()
        z = recurrent + x[:, t]
        z = tape.tanh(z) if form.bounded else z
        kept = f if form.forgets else 1 - f
        h = kept * h + (1 - kept) * z
        if form.state_dtype is not None:
            h = tape.rounded(h, partial(rounded, dtype=form.state_dtype))
        if form.clips == "after dy":
            h = tape.bounded_cotangent(h, bound)
            outputs.append(h)
        else:
            outputs.append(h)
            h = tape.bounded_cotangent(h, bound)
    return {"y": tape.stack(outputs, 1, (*h.shape[:1], 0, *h.shape[1:])), "state": h}


def product(h: Tensor, W: Tensor) -> Tensor:
    """h W, head by head."""
    return tape.einsum("bni,nij->bnj", h, W)


DEFINITION = GRUForm()

GRADIENTS: tuple[Named, ...] = (
    ("the gradient clipped after dy_t is added", {"clips": "after dy"}),
    ("the gradient with the initial state's clipped too", {"clips": "initial state too"}),
    ("the gradient without clipping", {"clips": "never"}),
    ("the gradient without the cotangent of the final state", {"state_cotangent": False}),
    ("the gradient without the state's path through the reset gate", {"paths": ("forget",)}),
    ("the gradient without the state's path through the forget gate", {"paths": ("reset",)}),
    ("the gradient without the state's paths through the gates", {"paths": ()}),
)
VALUES: tuple[Named, ...] = (
    ("the formula with the reset gate after the recurrent product (as in torch.nn.GRU)", {"reset": "after"}),
    ("the formula without the reset gate", {"reset": "none"}),
    ("the formula with the forget gate as an update gate, (1−f)⊙h + f⊙z", {"forgets": False}),
    ("the formula with shared heads tiled, not repeated", {"tiled": True}),
    ("the formula with transposed weights", {"transposed": True}),
    ("the formula with the forget and the reset gate swapped", {"swapped_gates": True}),
    ("the formula without tanh on the candidate", {"bounded": False}),
    ("the formula without the initial state", {"uses_state": False}),
    *PACKINGS,
)
FORMS = Forms(outputs=_outputs, definition=DEFINITION, gradients=GRADIENTS, values=VALUES)
compute, formulas, combined = FORMS.compute, FORMS.formulas, FORMS.combined
