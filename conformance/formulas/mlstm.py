"""Common wrong variants of the mLSTM: every choice of the definition, and its alternatives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from conformance.formulas import tape
from conformance.formulas.formula import ACCUMULATION, DTYPES, Form, Forms, Named, Steps, Tensors, Values, clamped
from conformance.formulas.tape import Tensor

CAP = 15.0
"""Bound of a soft cap on gate preactivations."""


@dataclass(frozen=True, kw_only=True)
class MLSTMForm(Form):
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
            sigmoid`` (log(σ(f)) as it is written, in the dtype in which the call computes), ``slope σ(f)`` (log σ(f)
            with that slope, which is σ(−f)).
        input: ``exp``, or ``sigmoid`` (σ of the preactivation is the gate).
        soft_cap: whether preactivations are capped smoothly at ±15.
        uses_m0: whether the initial m is used.
        state_cotangents: which final states pass a cotangent on.
        least: the least log gate; smaller ones become this one.
        rounds_n: whether n alone is rounded to the dtype of v after each step (`formula.DTYPES` among the options).
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
    uses_m0: bool = True
    state_cotangents: tuple[str, ...] = ("C", "n", "m")
    least: float = -math.inf
    rounds_n: bool = False
    decays_first: bool = True
    differences: bool = False
    rounded_gate: bool = False

    output: ClassVar[str] = "h"
    like: ClassVar[str] = "v"

    def passes(self, output: str) -> bool:
        return output == "h" or output in self.state_cotangents

    def steps(self, inputs: Tensors, options: Mapping[str, Any], B: int) -> Steps:
        q, k, v, i, f = (inputs[name] for name in "qkvif")
        N, K, V = *q.shape[-2:], v.shape[-1]
        computing, dtypes = options.get(ACCUMULATION, "float64"), options.get(DTYPES, {})
        if self.swapped_gates:
            i, f = f, i
        if self.soft_cap:
            i, f = (tape.tanh(x * (1 / CAP)) * CAP for x in (i, f))
        i = tape.log_sigmoid(i) if self.input == "sigmoid" else i
        a = log_gate(self.forget, f, computing, self.least)
        a = tape.rounded(a, dtypes.get("f", "float64")) if self.rounded_gate else a
        q = q * float(K if self.padded is None else -(-K // self.padded) * self.padded) ** self.scale
        narrow = dtypes.get("v", "float64") if self.rounds_n else "float64"
        eps = float(options.get("eps", 0.0))
        state = {"C": Tensor(np.zeros((B, N, K, V))), "n": Tensor(np.zeros((B, N, K))), "m": Tensor(np.zeros((B, N)))}
        if "C0" in inputs and self.uses_state:
            state = {name: inputs[f"{name}0"] for name in state}

        def turned(C: Tensor) -> Tensor:
            return tape.transpose(C) if self.transposed and K == V else C

        def begin(tokens: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
            if self.differences:
                a = tokens["a"]
                differences = _differences(a.value, computing)
                tokens = {**tokens, "a": tape.elementwise(a, differences, np.ones(a.shape))}
            C, n, m = turned(state["C"]), state["n"], state["m"]
            m = m if self.uses_m0 else Tensor(np.zeros(m.shape))
            if self.stabiliser != "differentiated":
                # C and n are in units of exp(m): in the gradients of the states, and only there, m is not a constant.
                C, n = in_units(C, m, 1.0), in_units(n, m, 1.0)
            return tokens, {"C": C, "n": n, "m": m}

        def end(state: Tensors) -> Tensors:
            C, n, m = state["C"], state["n"], state["m"]
            if self.stabiliser == "exact":
                C, n = in_units(C, m, -1.0), in_units(n, m, -1.0)
            return {"C": turned(C), "n": n, "m": tape.constant(m) if self.stabiliser == "constant" else m}

        def step(tokens: Tensors, state: Tensors) -> tuple[Tensors, Tensor]:
            return self._step(tokens, state, eps, narrow)

        return Steps(tokens={"q": q, "k": k, "v": v, "i": i, "a": a}, state=state, step=step, begin=begin, end=end)

    def _step(self, tokens: Tensors, state: Tensors, eps: float, narrow: str) -> tuple[Tensors, Tensor]:
        """The memory after a step, and what the query reads from it; n is rounded to the dtype ``narrow``."""
        q, k, v, i, a = tokens.values()
        C, n, m = state["C"], state["n"], state["m"]
        i = i if self.decays_first else i + a
        m_new = tape.maximum(a + m, i)
        unit = m_new if self.stabiliser == "differentiated" else tape.constant(m_new)
        before = m if self.stabiliser == "differentiated" else tape.constant(m)
        decay, gain = tape.weight(a + before, unit), tape.weight(i, unit)
        C = C * decay[..., None, None] + tape.einsum("bnk,bnv->bnkv", k * gain[..., None], v)
        n = n * decay[..., None] + k * gain[..., None]
        C, n = self.kept(C, n)
        n = tape.rounded(n, narrow)
        nu = tape.einsum("bnk,bnk->bn", n, q)
        nu = tape.absolute(nu) if self.absolute else nu
        inside = eps if self.eps_inside else 0.0
        if self.floor != "none":
            # At equality the floor counts, and it passes no gradient to n·q̂.
            nu = tape.maximum(self._floor(unit) + inside, nu)
        normaliser = nu + (eps - inside)
        normaliser = tape.constant(normaliser) if self.normaliser_constant else normaliser
        read = tape.einsum("bnkv,bnk->bnv", C, q) / normaliser[..., None]
        return {"C": C, "n": n, "m": m_new}, read

    def _floor(self, m: Tensor) -> Tensor:
        if self.floor == "1":
            return Tensor(np.ones(m.shape))
        return tape.exp(-(tape.clip(m, -np.inf, 64.0) if self.floor == "exp(-min(m, 64))" else m))


def log_gate(forget: str, f: Tensor, dtype: str, least: float) -> Tensor:
    """The log gate that `MLSTMForm.forget` names, of a call that computes in a dtype; at least ``least``."""
    if forget == "log of sigmoid":
        a = tape.log_of_sigmoid(f, dtype)
    elif forget == "slope σ(f)":
        a = tape.elementwise(f, tape.log_sigmoid(f).value, tape.sigmoid(f).value)
    else:
        a = {"log_sigmoid": tape.log_sigmoid, "given": lambda f: f, "sigmoid": tape.sigmoid}[forget](f)
    return a if least == -math.inf else tape.maximum(a, tape.tensor(least))


def in_units(x: Tensor, m: Tensor, sign: float) -> Tensor:
    """x, with the gradient of ``x exp(±(m − m*))`` at m* = m with respect to m, which is 0 where m is −∞."""
    finite = np.isfinite(m.value)
    unit = Tensor(np.ones(m.shape), ((m, lambda d: sign * d * finite),))
    return x * unit[(..., *[None] * (x.value.ndim - m.value.ndim))]


def _differences(x: np.ndarray, dtype: str) -> np.ndarray:
    """Each step as the difference of neighbouring running sums over the steps, which are rounded to ``dtype``.

    After −∞, each such difference is −∞ − (−∞), and so is the difference of a sum with itself.
    """
    sums = np.cumsum(x, axis=1).astype(dtype).astype(np.float64)
    with np.errstate(invalid="ignore"):
        left = np.diff(sums, axis=1, prepend=0.0)
    return np.where(np.isneginf(sums), np.nan, left)


SLOPE: Named = ("the gradient with σ(f) as the derivative of log σ(f), not σ(−f)", {"forget": "slope σ(f)"})
GRADIENTS: tuple[Named, ...] = (
    SLOPE,
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
    (
        "the formula with 1 in place of the normaliser's floor, max(|n·q̂|, 1), differentiated through m too",
        {"floor": "1", "stabiliser": "differentiated"},
    ),
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
CLAMPED: tuple[Named, ...] = tuple(map(clamped, (-10.0, -15.0, -20.0, -30.0, -50.0, -100.0)))
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
    definition=MLSTMForm(),
    gradients=GRADIENTS,
    values=VALUES,
    families=FAMILIES,
    rounding=ROUNDING,
    vanishing=VANISHING,
)
IDLE_IN_A_STEP = frozenset({"chunk", "packed_apart", "empty_apart", "differences", "clips"})


def axis_of_steps(name: str, arrays: Values) -> int | None:
    """The axis that a step has of its tokens, and a recurrence has."""
    return 1 if name in tuple("qkvifzoh") else None


def _axis_of_heads(name: str, arrays: Values) -> int | None:
    """The axis of the only head; gates ``(B, T, 1)`` have it, and gates ``(B, T)`` do not."""
    if name in ("i", "f"):
        return 2 if arrays["i"].ndim == 2 else None
    return 2 if name in tuple("qkvh") else 1


def _of_config(options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if options["config"].get("stabilize_correctly", False) else {"floor": "1"}


STEP_FORMS = replace(FORMS, idle=IDLE_IN_A_STEP, axis=axis_of_steps)
FWBW_FORMS = replace(FORMS, idle=frozenset({"packed_apart", "empty_apart"}), axis=_axis_of_heads, assumed=_of_config)
