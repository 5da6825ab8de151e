"""Common wrong variants of the mLSTM: every choice of the definition, and its alternatives."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import rounded
from conformance.formulas import tape
from conformance.formulas.formula import ACCUMULATION, DTYPES, Forms, Formula, Named, differences
from conformance.formulas.tape import Tensor

CAP = 15.0
"""Bound of a soft cap on gate preactivations."""


@dataclass(frozen=True, kw_only=True)
class MLSTMForm:
    """The choices of a variant; the defaults are the definition.

    Attributes:
        scale: power of K by which queries are multiplied.
        padded: the number to a multiple of which K is padded before that; None for none.
        floor: ``exp(-min(m, 64))``, ``exp(-m)``, ``1`` or ``none``.
        eps_inside: whether eps is added to the floor, not to the larger of the two.
        absolute: whether the absolute value of n·q̂ is taken.
        normaliser_constant: whether the gradient holds the normaliser constant.
        stabiliser: in the gradient, ``exact`` (of the states alone), ``differentiated`` or ``constant``.
        forget: ``log_sigmoid``, ``given`` (the preactivation is the log gate), ``sigmoid`` (its σ is), ``log of
            sigmoid`` (log(σ(f)) as it is written, in the dtype in which the call computes).
        input: ``exp``, or ``sigmoid`` (σ of the preactivation is the gate).
        soft_cap: whether preactivations are capped smoothly at ±15.
        swapped_gates: whether i and f are swapped.
        uses_state: whether the initial state is used.
        uses_m0: whether the initial m is used.
        transposed: whether C is transposed in the initial and the final state.
        state_cotangents: which final states pass a cotangent on.
        least: the least log gate; smaller ones become this one.
        chunk: the last steps that do not fill a chunk of this length are dropped; None for none.
        above: the number of steps above which they are.
        state_dtype: the dtype to which C and n are rounded after each step; None for no rounding.
        rounds_n: whether n alone is rounded to the dtype of v after each step (`formula.DTYPES` among the options).
        packed_apart: whether packed sequences are kept apart.
        empty_apart: whether the final state of an empty packed sequence is its own, not that of the one before it.
        decays_first: whether a step's write is not decayed by its own forget gate.
        differences: whether log decays are differences of running sums of log gates, rounded to the dtype in which the
            call computes (`formula.ACCUMULATION` among the options).
        rounded_gate: whether log gates are rounded to the dtype of f (`formula.DTYPES` among the options).
    """

    scale: float = -0.5
    padded: int | None = None
    floor: str = "exp(-min(m, 64))"
    eps_inside: bool = False
    absolute: bool = True
    normaliser_constant: bool = False
    stabiliser: str = "exact"
    forget: str = "log_sigmoid"
    input: str = "exp"
    soft_cap: bool = False
    swapped_gates: bool = False
    uses_state: bool = True
    uses_m0: bool = True
    transposed: bool = False
    state_cotangents: tuple[str, ...] = ("C", "n", "m")
    least: float = -math.inf
    chunk: int | None = None
    above: int = 0
    state_dtype: str | None = None
    rounds_n: bool = False
    packed_apart: bool = True
    empty_apart: bool = True
    decays_first: bool = True
    differences: bool = False
    rounded_gate: bool = False

    def passes(self, output: str) -> bool:
        return output == "h" or output in self.state_cotangents


def _outputs(
    form: MLSTMForm, inputs: Mapping[str, Tensor], cu_seqlens: np.ndarray | None, options: Mapping[str, Any]
) -> dict[str, Tensor]:
    if cu_seqlens is None:
        return _dense(form, inputs, options)
    bounds = [int(at) for at in cu_seqlens]
    parts, state = [], None
    for b, (start, end) in enumerate(itertools.pairwise(bounds)):
        sequence = {name: x[None, start:end] for name, x in inputs.items() if name in "qkvif"}
        sequence |= {name: x[b : b + 1] for name, x in inputs.items() if name not in "qkvif"}
        if state is not None and not (form.packed_apart and (start < end or form.empty_apart)):
            sequence |= {"C0": state["C"], "n0": state["n"], "m0": state["m"]}
        state = _dense(form, sequence, options)
        parts.append(state)
    if not parts:
        return {"h": inputs["v"], **{name: inputs[f"{name}0"] for name in "Cnm" if f"{name}0" in inputs}}
    joined = {name: tape.concatenate([part[name] for part in parts], 0) for name in "Cnm"}
    return {"h": tape.concatenate([part["h"] for part in parts], 1)[0], **joined}


def _dense(form: MLSTMForm, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    q, k, v, i, f = (inputs[name] for name in "qkvif")
    (B, S, N, K), V = q.shape, v.shape[-1]
    if form.transposed and K != V:
        form = replace(form, transposed=False)
    if form.swapped_gates:
        i, f = f, i
    if form.soft_cap:
        i, f = tape.tanh(i * (1 / CAP)) * CAP, tape.tanh(f * (1 / CAP)) * CAP
    if form.input == "sigmoid":
        i = tape.log_sigmoid(i)
    accumulation = options.get(ACCUMULATION, "float64")
    a = log_gate(form.forget, f, accumulation)
    if form.least > -math.inf:
        a = tape.maximum(a, tape.tensor(form.least))
    if form.rounded_gate:
        a = tape.rounded(a, partial(rounded, dtype=options.get(DTYPES, {}).get("f", "float64")))
    if form.differences:
        a = tape.rounded(a, partial(differences, axis=1, dtype=accumulation))
    eps = float(options.get("eps", 0.0))
    C, n, m = _initial(form, inputs, (B, N, K, V))
    q = q * float(K if form.padded is None else -(-K // form.padded) * form.padded) ** form.scale
    steps = S if form.chunk is None or S <= form.above else S - S % form.chunk
    narrow = options.get(DTYPES, {}).get("v", "float64") if form.rounds_n else None
    outputs: list[Tensor] = []
    for t in range(S):
        if t >= steps:
            outputs.append(Tensor(np.zeros((B, N, V))))
            continue
        C, n, m, read = _step(form, (q[:, t], k[:, t], v[:, t], i[:, t], a[:, t]), (C, n, m), eps, narrow)
        outputs.append(read)
    if form.stabiliser == "exact":
        # C and n are in units of exp(m): in the gradients of the states, and only there, m is not a constant.
        unit = unit_of(m, -1.0)
        C, n = C * unit[..., None, None], n * unit[..., None]
    if form.stabiliser == "constant":
        m = tape.constant(m)
    C = tape.transpose(C) if form.transposed else C
    return {"h": tape.stack(outputs, 1, (B, 0, N, V)), "C": C, "n": n, "m": m}


def log_gate(forget: str, f: Tensor, dtype: str) -> Tensor:
    """The log gate that `MLSTMForm.forget` names, of a call that computes in a dtype."""
    return {
        "log_sigmoid": tape.log_sigmoid,
        "given": lambda f: f,
        "sigmoid": tape.sigmoid,
        "log of sigmoid": partial(tape.log_of_sigmoid, dtype=dtype),
    }[forget](f)


def unit_of(m: Tensor, sign: float) -> Tensor:
    """1, with the gradient of ``exp(±(m − m*))`` at m* = m, which is 0 where m is −∞."""
    finite = np.isfinite(m.value)
    return Tensor(np.ones(m.shape), ((m, lambda d: sign * d * finite),))


def _initial(form: MLSTMForm, inputs: Mapping[str, Tensor], shape: tuple[int, int, int, int]) -> tuple[Tensor, ...]:
    B, N, K, V = shape
    if "C0" not in inputs or not form.uses_state:
        return Tensor(np.zeros((B, N, K, V))), Tensor(np.zeros((B, N, K))), Tensor(np.zeros((B, N)))
    C, n, m = inputs["C0"], inputs["n0"], inputs["m0"]
    C = tape.transpose(C) if form.transposed else C
    m = m if form.uses_m0 else Tensor(np.zeros((B, N)))
    if form.stabiliser == "differentiated":
        return C, n, m
    unit = unit_of(m, 1.0)
    return C * unit[..., None, None], n * unit[..., None], m


def _step(
    form: MLSTMForm,
    tokens: tuple[Tensor, ...],
    state: tuple[Tensor, Tensor, Tensor],
    eps: float,
    narrow: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The memory after a step, and what the query reads from it; n is rounded to the dtype ``narrow``."""
    q, k, v, i, a = tokens
    C, n, m = state
    i = i if form.decays_first else i + a
    carried = a + m
    m_new = tape.maximum(carried, i)
    unit = m_new if form.stabiliser == "differentiated" else tape.constant(m_new)
    before = m if form.stabiliser == "differentiated" else tape.constant(m)
    decay, gain = tape.weight(a + before, unit), tape.weight(i, unit)
    C = C * decay[..., None, None] + tape.einsum("bnk,bnv->bnkv", k * gain[..., None], v)
    n = n * decay[..., None] + k * gain[..., None]
    if form.state_dtype is not None:
        C, n = (tape.rounded(x, partial(rounded, dtype=form.state_dtype)) for x in (C, n))
    n = n if narrow is None else tape.rounded(n, partial(rounded, dtype=narrow))
    nu = tape.einsum("bnk,bnk->bn", n, q)
    nu = tape.absolute(nu) if form.absolute else nu
    floor = {
        "exp(-min(m, 64))": lambda: tape.exp(-tape.clip(unit, -np.inf, 64.0)),
        "exp(-m)": lambda: tape.exp(-unit),
        "1": lambda: Tensor(np.ones(nu.shape)),
        "none": lambda: None,
    }[form.floor]()
    # At equality the floor counts, and it passes no gradient to n·q̂.
    inside = eps if form.eps_inside else 0.0
    normaliser = nu if floor is None else tape.maximum(floor + inside, nu)
    normaliser = normaliser + (eps - inside)
    normaliser = tape.constant(normaliser) if form.normaliser_constant else normaliser
    return C, n, m_new, tape.einsum("bnkv,bnk->bnv", C, q) / normaliser[..., None]


def clamped(least: float) -> str:
    """The name of the formula whose log gates are at least a number."""
    return f"the formula with log σ(f) clamped at {least:g}".replace("-", "−")


DEFINITION = MLSTMForm()

GRADIENTS: tuple[Named, ...] = (
    ("the gradient with the normaliser held constant", {"normaliser_constant": True}),
    (
        "the gradient with the normaliser held constant, its floor's dependence on m included",
        {"normaliser_constant": True, "stabiliser": "differentiated"},
    ),
    ("the gradient with the stabiliser m held constant", {"stabiliser": "constant"}),
    ("the gradient with the stabiliser m differentiated in eps and in the floor", {"stabiliser": "differentiated"}),
    ("the gradient without the cotangents of the final state", {"state_cotangents": ()}),
    ("the gradient without the cotangent of the final C", {"state_cotangents": ("n", "m")}),
    ("the gradient without the cotangent of the final n", {"state_cotangents": ("C", "m")}),
    ("the gradient without the cotangent of the final m", {"state_cotangents": ("C", "n")}),
)
PACKINGS: tuple[Named, ...] = (
    (
        "the formula with an empty packed sequence's final state taken from the one before it",
        {"empty_apart": False},
    ),
    ("the formula without a boundary between packed sequences", {"packed_apart": False}),
)
VALUES: tuple[Named, ...] = (
    ("the formula with 1 in place of the normaliser's floor, max(|n·q̂|, 1)", {"floor": "1"}),
    ("the formula without the normaliser's floor", {"floor": "none"}),
    ("the formula with the floor exp(−m), without the limit at m = 64", {"floor": "exp(-m)"}),
    ("the formula with eps inside the floor, max(|n·q̂|, floor + eps)", {"eps_inside": True}),
    ("the formula without the absolute value, n·q̂ in place of |n·q̂|", {"absolute": False}),
    ("the formula without 1/√K", {"scale": 0.0}),
    ("the formula with 1/√K twice", {"scale": -1.0}),
    ("the formula with f as the log gate, not log σ(f)", {"forget": "given"}),
    ("the formula with σ(f) as the log gate, not log σ(f)", {"forget": "sigmoid"}),
    ("the formula with σ(i) as the input gate, not exp(i)", {"input": "sigmoid"}),
    ("the formula with the gates capped smoothly at ±15", {"soft_cap": True}),
    ("the formula with i and f swapped", {"swapped_gates": True}),
    ("the formula with a step's own write decayed by its forget gate", {"decays_first": False}),
    ("the formula without the initial state", {"uses_state": False}),
    ("the formula with 0 in place of the initial m", {"uses_m0": False}),
    ("the formula with C transposed in the initial and the final state", {"transposed": True}),
    *PACKINGS,
)
CLAMPED: tuple[Named, ...] = tuple(
    (clamped(least), {"least": least}) for least in (-10.0, -15.0, -20.0, -30.0, -50.0, -100.0)
)
FAMILIES: tuple[Named, ...] = (
    *((f"the formula with 1/√K of K padded to a multiple of {n}", {"padded": n}) for n in (4, 8, 16, 32, 64, 128)),
    *CLAMPED,
)
ROUNDING: tuple[Named, ...] = (
    ("the formula with log decays as differences of cumulative sums", {"differences": True}),
    ("the formula with log σ(f) rounded to the 16 bits of f", {"rounded_gate": True}),
    ("the formula with n rounded to the dtype of the values after each step", {"rounds_n": True}),
)
VANISHING = (
    (
        "the formula with log(σ(f)) as it is written, −∞ where σ(f) is rounded to 0",
        {"forget": "log of sigmoid"},
        ("forget gates of -inf", "forget gates of -1e30"),
    ),
)
FORMS = Forms(
    outputs=_outputs,
    definition=DEFINITION,
    gradients=GRADIENTS,
    values=VALUES,
    families=FAMILIES,
    rounding=ROUNDING,
    vanishing=VANISHING,
)
compute, formulas, combined = FORMS.compute, FORMS.formulas, FORMS.combined


def of_least(least: float) -> Formula:
    """The formula whose log gates are at least a number."""
    return FORMS.changed(clamped(least), {"least": least})
