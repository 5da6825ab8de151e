"""Common wrong variants of the sLSTM: every choice of the definition, and its alternatives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.base.dtypes import rounded
from conformance.formulas import tape
from conformance.formulas.formula import ACCUMULATION, Forms, Formula, Named
from conformance.formulas.gru import product
from conformance.formulas.mlstm import CLAMPED, PACKINGS, VANISHING, clamped, log_gate, unit_of
from conformance.formulas.tape import Tensor

TOKENS = tuple("zifo")
_STATES = {"c": "c0", "n": "n0", "m": "m0", "last_h": "h0"}
State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class SLSTMForm:
    """The choices of a variant; the defaults are the definition.

    Attributes:
        stabiliser: in the gradient, ``exact`` (of the states alone), ``differentiated``, ``constant``, or ``carried``
            (a constant where it is subtracted, but not where it is added to the next log gate).
        normaliser_constant: whether the gradient holds n constant where c is divided by it.
        recurrent: whether the gradient passes through the recurrent products.
        clips: ``before dy`` is added, ``after dy``, or ``never``.
        least_n: the least divisor of c.
        empty: m where no initial state is given: ``−∞``, ``0``, or ``0, first`` (0, and the first write decides alone
            if no element of the batch has been written to).
        forget: ``log_sigmoid``, ``given``, ``sigmoid`` or ``log of sigmoid``, as in the mLSTM's form, where the gate is
            not exponential.
        option: whether the option for an exponential forget gate is followed.
        input: ``exp``, or ``sigmoid`` (σ of the preactivation is the gate).
        bounded: whether the cell input is bounded by tanh.
        gates_output: whether h is multiplied by the output gate.
        swapped_gates: whether i and f are swapped.
        transposed: whether the weights are transposed.
        uses_state, state_cotangents: whether the initial state is used, and whether the final one passes its cotangents
            on.
        least: the least log gate; smaller ones become this one.
        chunk, above, state_dtype, packed_apart, empty_apart: as in the mLSTM's form.
    """

    stabiliser: str = "exact"
    normaliser_constant: bool = False
    recurrent: bool = True
    clips: str = "before dy"
    least_n: float = 0.0
    empty: str = "−∞"
    forget: str = "log_sigmoid"
    option: bool = True
    input: str = "exp"
    bounded: bool = True
    gates_output: bool = True
    swapped_gates: bool = False
    transposed: bool = False
    uses_state: bool = True
    state_cotangents: bool = True
    least: float = -math.inf
    chunk: int | None = None
    above: int = 0
    state_dtype: str | None = None
    packed_apart: bool = True
    empty_apart: bool = True

    def passes(self, output: str) -> bool:
        return output == "h" or self.state_cotangents


def _outputs(
    form: SLSTMForm, inputs: Mapping[str, Tensor], cu_seqlens: np.ndarray | None, options: Mapping[str, Any]
) -> dict[str, Tensor]:
    weights = {name: inputs[f"weight_{name}"] for name in TOKENS}
    weights = {name: tape.transpose(W) if form.transposed else W for name, W in weights.items()}
    tokens = {name: inputs[name] for name in TOKENS}
    if form.swapped_gates:
        tokens |= {"i": tokens["f"], "f": tokens["i"]}
        weights |= {"i": weights["f"], "f": weights["i"]}
    N, H = inputs["z"].shape[-2:]
    state = _initial(form, inputs, (inputs["z"].shape[0] if cu_seqlens is None else len(cu_seqlens) - 1, N, H))
    if cu_seqlens is None:
        return _dense(form, tokens, weights, state, options)
    parts: list[dict[str, Tensor]] = []
    for b, (start, end) in enumerate(pairwise(int(at) for at in cu_seqlens)):
        own = not parts or (form.packed_apart and (start < end or form.empty_apart))
        carried = {name: x[b : b + 1] if own else parts[-1][name] for name, x in state.items()}
        parts.append(_dense(form, {name: x[None, start:end] for name, x in tokens.items()}, weights, carried, options))
    if not parts:
        return {"h": tokens["z"], **state}
    joined = {name: tape.concatenate([part[name] for part in parts], 0) for name in _STATES}
    return {"h": tape.concatenate([part["h"] for part in parts], 1)[0], **joined}


def _initial(form: SLSTMForm, inputs: Mapping[str, Tensor], shape: tuple[int, ...]) -> State:
    if "c0" in inputs and form.uses_state:
        return {name: inputs[given] for name, given in _STATES.items()}
    empty = -np.inf if form.empty == "−∞" else 0.0
    return {name: Tensor(np.full(shape, empty if name == "m" else 0.0)) for name in _STATES}


def _dense(
    form: SLSTMForm,
    tokens: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    state: State,
    options: Mapping[str, Any],
) -> dict[str, Tensor]:
    clipping, exponential = options.get("gradient_clipping"), options.get("forget_gate") == "exp"
    bound = np.inf if clipping is None or form.clips == "never" else abs(float(clipping))
    forget = "given" if exponential and form.option else form.forget
    log = partial(log_gate, forget, dtype=options.get(ACCUMULATION, "float64"))
    c, n, m, h = state.values()
    if form.stabiliser == "exact":
        # c and n are in units of exp(m): in the gradients of the states, and only there, m is not a constant.
        c, n = (x * unit_of(m, 1.0) for x in (c, n))
    S = tokens["z"].shape[1]
    steps = S if form.chunk is None or S <= form.above else S - S % form.chunk
    outputs = []
    for t in range(S):
        if t >= steps:
            outputs.append(Tensor(np.zeros(h.shape)))
            continue
        read = h if form.recurrent else tape.constant(h)
        u = {name: tokens[name][:, t] + product(read, weights[name]) for name in TOKENS}
        c, n, m, h = _step(form, u, (c, n, m), log)
        if form.state_dtype is not None:
            c, n, h = (tape.rounded(x, partial(rounded, dtype=form.state_dtype)) for x in (c, n, h))
        bounded = tape.bounded_cotangent(h, bound)
        outputs.append(bounded if form.clips == "after dy" else h)
        h = bounded
    if form.stabiliser == "exact":
        c, n = (x * unit_of(m, -1.0) for x in (c, n))
    m = tape.constant(m) if form.stabiliser == "constant" else m
    return {"h": tape.stack(outputs, 1, (*h.shape[:1], 0, *h.shape[1:])), "c": c, "n": n, "m": m, "last_h": h}


def _step(
    form: SLSTMForm, u: Mapping[str, Tensor], state: tuple[Tensor, Tensor, Tensor], log: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c, n, m = state
    i, a = u["i"] if form.input == "exp" else tape.log_sigmoid(u["i"]), log(u["f"])
    a = a if form.least == -math.inf else tape.maximum(a, tape.tensor(form.least))
    first = form.empty == "0, first" and not n.value.any()
    m_new = i if first else tape.maximum(a + m, i)
    before = m if form.stabiliser in ("carried", "differentiated") else tape.constant(m)
    unit = m_new if form.stabiliser == "differentiated" else tape.constant(m_new)
    decay, gain = tape.weight(a + before, unit), tape.weight(i, unit)
    c = c * decay + gain * (tape.tanh(u["z"]) if form.bounded else u["z"])
    n = n * decay + gain
    divisor = tape.constant(n) if form.normaliser_constant else n
    if form.least_n:
        h = c / tape.maximum(divisor, tape.tensor(form.least_n))
    else:
        written = n.value != 0
        h = (c * written) / (divisor + ~written)
    return c, n, m_new, h * tape.sigmoid(u["o"]) if form.gates_output else h


DEFINITION = SLSTMForm()

GRADIENTS: tuple[Named, ...] = (
    ("the gradient with the stabiliser m held constant", {"stabiliser": "constant"}),
    (
        "the gradient with the stabiliser m held constant where it is subtracted, but not where it is carried",
        {"stabiliser": "carried"},
    ),
    ("the gradient with the normaliser n held constant", {"normaliser_constant": True}),
    ("the gradient without the path through the recurrent weights", {"recurrent": False}),
    ("the gradient clipped after dy_t is added", {"clips": "after dy"}),
    ("the gradient without clipping", {"clips": "never"}),
    ("the gradient without the cotangents of the final state", {"state_cotangents": False}),
)
VALUES: tuple[Named, ...] = (
    ("the formula that begins with m = 0, not −∞", {"empty": "0"}),
    (
        "the formula that begins with m = 0, and whose first write decides alone if all n of the batch are 0",
        {"empty": "0, first"},
    ),
    ("the formula with f as the log gate, not log σ(f)", {"forget": "given"}),
    ("the formula with σ(f) as the log gate, not log σ(f)", {"forget": "sigmoid"}),
    ("the formula with log σ(f) for an exponential forget gate too", {"option": False}),
    ("the formula with σ(i) as the input gate, not exp(i)", {"input": "sigmoid"}),
    ("the formula without tanh on the cell input", {"bounded": False}),
    ("the formula without the output gate", {"gates_output": False}),
    ("the formula with i and f swapped", {"swapped_gates": True}),
    ("the formula with transposed weights", {"transposed": True}),
    ("the formula without the initial state", {"uses_state": False}),
    ("the formula with a divisor of at least 1, c / max(n, 1)", {"least_n": 1.0, "stabiliser": "differentiated"}),
    *PACKINGS,
)
FORMS = Forms(
    outputs=_outputs,
    definition=DEFINITION,
    gradients=GRADIENTS,
    values=VALUES,
    families=CLAMPED,
    vanishing=VANISHING,
)
compute, formulas, combined = FORMS.compute, FORMS.formulas, FORMS.combined


def of_least(least: float) -> Formula:
    """The formula whose log gates are at least a number."""
    return FORMS.changed(clamped(least), {"least": least})
