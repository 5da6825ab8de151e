"""`GRU` layers and calls of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import Array, accumulation, array
from conformance.cases import PINS, SEEDS, Limits, Sequences, generator, register

COUNTS = (
    "num_input_heads",
    "num_forget_input_heads",
    "num_reset_input_heads",
    "num_weight_heads",
    "num_forget_weight_heads",
    "num_reset_weight_heads",
)


@register()
@dataclass(frozen=True)
class LayerCase(Sequences):
    """A `GRU` layer and a call of it.

    Attributes:
        B, S: sequences and steps; for packed calls both follow from ``lengths``.
        features, H, outputs: sizes of the layer.
        heads: the six head counts in the order of the layer's arguments (input, forget input, reset input, weight, …).
        bias: whether its projections add one.
        state: whether an initial state is given.
        reset_after: whether the reset gate is applied after the recurrent product.
    """

    B: int
    S: int
    features: int
    H: int
    outputs: int
    heads: tuple[int, int, int, int, int, int]
    bias: bool = True
    state: bool = True
    clipping: float | None = None
    lengths: tuple[int, ...] | None = None
    seed: int = 0
    reset_after: bool = False

    @property
    def size(self) -> int:
        return (self.B * self.S + sum(self.lengths or ()) + 1) * sum(self.heads) * self.H * self.features

    def describe(self) -> str:
        packed = f"lengths {list(self.lengths)}" if self.lengths is not None else f"B={self.B}, S={self.S}"
        said = ", ".join(f"{name}={value}" for name, value in self.settings().items())
        return f"{packed}, state={self.state}, seed={self.seed}; GRU({said})"

    def settings(self) -> dict[str, Any]:
        sizes = {"input_size": self.features, "state_head_dim": self.H, "output_size": self.outputs}
        heads = dict(zip(COUNTS, self.heads, strict=True))
        options = {"add_bias": self.bias, "gradient_clipping": self.clipping, "reset_after": self.reset_after}
        return {**sizes, **heads, **options}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter."""
        Nx, Nxf, Nxr, Nw, Nwf, Nwr = self.heads
        H, N, projected = self.H, max(self.heads), (Nx + Nxf + Nxr) * self.H
        shapes = {
            "input_projection.kernel": (self.features, projected),
            "input_projection.bias": (projected,),
            "state_weight": (Nw, H, H),
            "forget_weight": (Nwf, H, H),
            "reset_weight": (Nwr, H, H),
            "output_projection.kernel": (N * H, self.outputs),
            "output_projection.bias": (self.outputs,),
        }
        if self.reset_after:
            shapes["recurrent_bias"] = (Nw, H)
        return {name: shape for name, shape in shapes.items() if self.bias or not name.endswith("bias")}

    def parameters(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 60)
        return {
            name: array(rng.normal(size=shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1.0), dtype)
            for name, shape in self.shapes().items()
        }

    def _leading(self) -> tuple[int, ...]:
        return self.tokens[1:] if self.packed else self.tokens

    def arrays(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 61)
        arrays = {"input": array(rng.normal(size=(*self._leading(), self.features)), dtype)}
        if self.state:
            arrays["input_state"] = array(rng.normal(size=self._state()), accumulation(dtype))
        if self.lengths is not None:
            arrays["cu_seqlens"] = array(np.cumsum([0, *self.lengths]), "int32")
        return arrays

    def _state(self) -> tuple[int, ...]:
        return (self.sequences, max(self.heads), self.H)

    def cotangents(self, dtype: str) -> dict[str, Array]:
        rng = generator(self.seed, 62)
        output = array(rng.normal(size=(*self._leading(), self.outputs)), dtype)
        return {"output": output, "state": array(rng.normal(size=self._state()), accumulation(dtype))}


_TABLE = (
    LayerCase(2, 4, 3, 2, 5, (4, 1, 2, 1, 2, 4), clipping=0.3, seed=1),
    LayerCase(0, 0, 4, 3, 2, (1, 2, 1, 2, 1, 1), bias=False, lengths=(2, 0, 3), state=False, seed=2),
    LayerCase(2, 3, 2, 3, 4, (2, 1, 2, 4, 1, 2), clipping=0.3, seed=3, reset_after=True),
)
_HEADS = ((1, 1, 1, 1, 1, 1), (4, 1, 2, 1, 2, 4), (1, 3, 1, 3, 3, 1), (2, 4, 1, 4, 1, 2), (1, 1, 1, 6, 2, 3))


@st.composite
def layers(draw: Any, limits: Limits) -> LayerCase:
    """A layer and a call; for a target that compiles, only those of the table."""
    number = PINS[limits.stratum].index(limits.pin) if limits.pin else len(_TABLE)
    if number < len(_TABLE) or not limits.eager:
        return draw(st.just(_TABLE[number]) if number < len(_TABLE) else st.nothing())
    lengths = draw(st.sampled_from((None, (3, 2), (0, 4), (1,))))
    B, S = (draw(st.sampled_from((2, 1))), draw(st.sampled_from((5, 1, 0, 13)))) if lengths is None else (0, 0)
    features, H, outputs = (draw(st.sampled_from((3, 1, 5))) for _ in range(3))
    heads, bias, state = draw(st.sampled_from(_HEADS)), draw(st.booleans()), draw(st.booleans())
    clipping = draw(st.sampled_from((None, 0.1)))
    after = draw(st.booleans())
    return LayerCase(B, S, features, H, outputs, heads, bias, state, clipping, lengths, draw(SEEDS), after)
