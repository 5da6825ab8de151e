"""Common wrong variants of the GRU: every choice of the definition, and its alternatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.formulas import tape
from conformance.formulas.formula import Form, Forms, Named, Steps, Tensors
from conformance.formulas.mlstm import PACKINGS
from conformance.formulas.tape import Tensor

TOKENS = ("input", "forget_input", "reset_input")
WEIGHTS = ("weight", "forget_weight", "reset_weight")


@dataclass(frozen=True, kw_only=True)
class GRUForm(Form):
    """The choices of a variant; the defaults are the definition.

    Attributes:
        reset: ``inside`` the recurrent product, ``after`` it, or ``none``.
        forgets: whether the forget gate keeps the share f of the state; otherwise it is an update gate, which keeps 1 −
            f.
        tiled: whether shared heads are tiled (head n is n mod N′), not repeated (head n is n // (N/N′)).
        clips: ``before dy`` is added, ``after dy``, ``initial state too``, or ``never``.
        state_cotangent: whether the final state passes its cotangent on.
        bounded: whether the candidate is bounded by tanh.
        paths: the gates through which the gradient of the state passes.
        whole_share: whether the gradient of the forget gate is that of f⊙h + (1−f)⊙z; otherwise of f⊙h alone.
    """

    reset: str = "inside"
    forgets: bool = True
    tiled: bool = False
    clips: str = "before dy"
    state_cotangent: bool = True
    bounded: bool = True
    paths: tuple[str, ...] = ("forget", "reset")
    whole_share: bool = True

    output: ClassVar[str] = "y"
    like: ClassVar[str] = "input"

    def passes(self, output: str) -> bool:
        return output == "y" or self.state_cotangent

    def steps(self, inputs: Tensors, options: Mapping[str, Any], B: int) -> Steps:
        bound = bound_of(options, self.clips)
        axes = {**dict.fromkeys(TOKENS, -2), **dict.fromkeys(WEIGHTS, 0)}
        heads = max(inputs[name].shape[axis] for name, axis in axes.items())
        full = {name: self._repeated(inputs[name], heads, axis) for name, axis in axes.items()}
        if self.transposed:
            full |= {name: tape.transpose(full[name]) for name in WEIGHTS}
        if self.swapped_gates:
            swapped = {"forget_input": "reset_input", "forget_weight": "reset_weight"}
            full |= {**{a: full[b] for a, b in swapped.items()}, **{b: full[a] for a, b in swapped.items()}}
        h = inputs.get("input_state") if self.uses_state else None
        h = Tensor(np.zeros((B, heads, inputs["weight"].shape[-1]))) if h is None else h

        def begin(tokens: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
            if self.clips == "initial state too":
                state = {"state": tape.bounded_cotangent(state["state"], bound)}
            return tokens, state

        def step(tokens: Tensors, state: Tensors) -> tuple[Tensors, Tensor]:
            (h,) = self.kept(self._step(tokens, full, state["state"]))
            clipped = tape.bounded_cotangent(h, bound)
            return {"state": clipped}, clipped if self.clips == "after dy" else h

        return Steps(tokens={name: full[name] for name in TOKENS}, state={"state": h}, step=step, begin=begin)

    def _repeated(self, x: Tensor, heads: int, axis: int) -> Tensor:
        """The array with shared heads repeated, so that each head has its own."""
        own = x.shape[axis]
        index = np.arange(heads) % own if self.tiled else np.arange(heads) // (heads // own)
        return tape.repeat(x, index, axis)

    def _step(self, tokens: Tensors, weights: Tensors, h: Tensor) -> Tensor:
        x, xf, xr = (tokens[name] for name in TOKENS)
        W, Wf, Wr = (weights[name] for name in WEIGHTS)
        read_f, read_r = (h if gate in self.paths else tape.constant(h) for gate in ("forget", "reset"))
        f, r = tape.sigmoid(product(read_f, Wf) + xf), tape.sigmoid(product(read_r, Wr) + xr)
        recurrent = product(r * h if self.reset == "inside" else h, W)
        z = (r * recurrent if self.reset == "after" else recurrent) + x
        z = tape.tanh(z) if self.bounded else z
        kept = f if self.forgets else 1 - f
        return kept * h + (1 - (kept if self.whole_share else tape.constant(kept))) * z


def bound_of(options: Mapping[str, Any], clips: str) -> float:
    """The bound of the gradient of a state; infinite where it is not clipped."""
    clipping = options.get("gradient_clipping")
    return np.inf if clipping is None or clips == "never" else abs(float(clipping))


def product(h: Tensor, W: Tensor) -> Tensor:
    """h W, head by head."""
    return tape.einsum("bni,nij->bnj", h, W)


GRADIENTS: tuple[Named, ...] = (
    ("the gradient clipped after dy_t is added", {"clips": "after dy"}),
    ("the gradient with the initial state's clipped too", {"clips": "initial state too"}),
    ("the gradient without clipping", {"clips": "never"}),
    ("the gradient without the cotangent of the final state", {"state_cotangent": False}),
    ("the gradient with h in place of h − z in that of the forget gate", {"whole_share": False}),
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
FORMS = Forms(definition=GRUForm(), gradients=GRADIENTS, values=VALUES)
