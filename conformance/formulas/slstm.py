"""Common wrong variants of the sLSTM: every choice of the definition, and its alternatives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from conformance.formulas import tape
from conformance.formulas.formula import ACCUMULATION, Form, Forms, Named, Steps, Tensors
from conformance.formulas.gru import bound_of, product
from conformance.formulas.mlstm import (
    CLAMPED,
    IDLE_IN_A_STEP,
    PACKINGS,
    SLOPE,
    VANISHING,
    axis_of_steps,
    in_units,
    log_gate,
)
from conformance.formulas.tape import Tensor

TOKENS = tuple("zifo")
_STATES = {"c": "c0", "n": "n0", "m": "m0", "last_h": "h0"}


@dataclass(frozen=True, kw_only=True)
class SLSTMForm(Form):
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
        forget: ``log_sigmoid``, ``given``, ``sigmoid``, ``log of sigmoid`` or ``slope σ(f)``, as in the mLSTM's form,
            where the gate is not exponential.
        option: whether the option for an exponential forget gate is followed.
        input: ``exp``, or ``sigmoid`` (σ of the preactivation is the gate).
        bounded: whether the cell input is bounded by tanh.
        gates_output: whether h is multiplied by the output gate.
        state_cotangents: whether the final state passes its cotangents on.
        least: the least log gate; smaller ones become this one.
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
    state_cotangents: bool = True
    least: float = -math.inf

    output: ClassVar[str] = "h"
    like: ClassVar[str] = "z"

    def passes(self, output: str) -> bool:
        return output == "h" or self.state_cotangents

    def steps(self, inputs: Tensors, options: Mapping[str, Any], B: int) -> Steps:
        weights = {name: inputs[f"weight_{name}"] for name in TOKENS}
        weights = {name: tape.transpose(W) if self.transposed else W for name, W in weights.items()}
        tokens = {name: inputs[name] for name in TOKENS}
        if self.swapped_gates:
            tokens |= {"i": tokens["f"], "f": tokens["i"]}
            weights |= {"i": weights["f"], "f": weights["i"]}
        given = "c0" in inputs and self.uses_state
        shape, m = (B, *inputs["z"].shape[-2:]), -np.inf if self.empty == "−∞" else 0.0
        state = {
            name: inputs[initial] if given else Tensor(np.full(shape, m if name == "m" else 0.0))
            for name, initial in _STATES.items()
        }
        bound = bound_of(options, self.clips)
        forget = "given" if options.get("forget_gate") == "exp" and self.option else self.forget
        computing = options.get(ACCUMULATION, "float64")

        def scaled(state: Tensors, sign: float) -> dict[str, Tensor]:
            # c and n are in units of exp(m): in the gradients of the states, and only there, m is not a constant.
            exact = self.stabiliser == "exact"
            return {name: in_units(x, state["m"], sign) if exact and name in "cn" else x for name, x in state.items()}

        def end(state: Tensors) -> Tensors:
            state = scaled(state, -1.0)
            return {**state, "m": tape.constant(state["m"])} if self.stabiliser == "constant" else state

        def step(tokens: Tensors, state: Tensors) -> tuple[Tensors, Tensor]:
            read = state["last_h"] if self.recurrent else tape.constant(state["last_h"])
            u = {name: x + product(read, weights[name]) for name, x in tokens.items()}
            c, n, m, h = self._step(u, log_gate(forget, u["f"], computing, self.least), state)
            c, n, h = self.kept(c, n, h)
            bounded = tape.bounded_cotangent(h, bound)
            return {"c": c, "n": n, "m": m, "last_h": bounded}, bounded if self.clips == "after dy" else h

        return Steps(
            tokens=tokens,
            state=state,
            step=step,
            begin=lambda tokens, state: (tokens, scaled(state, 1.0)),
            end=end,
        )

    def _step(self, u: Tensors, a: Tensor, state: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        c, n, m = state["c"], state["n"], state["m"]
        i = u["i"] if self.input == "exp" else tape.log_sigmoid(u["i"])
        first = self.empty == "0, first" and not n.value.any()
        m_new = i if first else tape.maximum(a + m, i)
        before = m if self.stabiliser in ("carried", "differentiated") else tape.constant(m)
        unit = m_new if self.stabiliser == "differentiated" else tape.constant(m_new)
        decay, gain = tape.weight(a + before, unit), tape.weight(i, unit)
        c = c * decay + gain * (tape.tanh(u["z"]) if self.bounded else u["z"])
        n = n * decay + gain
        divisor = tape.constant(n) if self.normaliser_constant else n
        if self.least_n:
            h = c / tape.maximum(divisor, tape.tensor(self.least_n))
        else:
            written = n.value != 0
            h = (c * written) / (divisor + ~written)
        return c, n, m_new, h * tape.sigmoid(u["o"]) if self.gates_output else h


GRADIENTS: tuple[Named, ...] = (
    SLOPE,
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
    definition=SLSTMForm(),
    gradients=GRADIENTS,
    values=VALUES,
    families=CLAMPED,
    vanishing=VANISHING,
)
STEP_FORMS = replace(FORMS, idle=IDLE_IN_A_STEP, axis=axis_of_steps)
