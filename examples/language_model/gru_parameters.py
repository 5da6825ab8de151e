"""The framework-independent part of the GRU language model: sizes, and names, shapes and initial values of parameters.

The names are those of the PyTorch model. A weight of a linear map is ``(out, in)``; `to_flax` and `from_flax` transpose
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class GRUModelConfig:
    """Sizes of the model.

    Attributes:
        vocabulary: number of tokens.
        width: features of the residual stream, D.
        blocks: number of blocks, each a GRU and a gated feed-forward layer.
        heads: N of the GRU, which divides D.
    """

    vocabulary: int
    width: int
    blocks: int
    heads: int

    @property
    def head_dim(self) -> int:
        """H of the GRU."""
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Features within a feed-forward layer: 8/3 of the width, rounded up to a multiple of 32."""
        return -(-8 * self.width // 3 // 32) * 32


def shapes(config: GRUModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by its name."""
    D, N, H = config.width, config.heads, config.head_dim
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocabulary, D)}
    for index in range(config.blocks):
        block = {
            "norm_gru.weight": (D,),
            "gru.input_projection.weight": (3 * N * H, D),
            "gru.input_projection.bias": (3 * N * H,),
            "gru.state_weight": (N, H, H),
            "gru.forget_weight": (N, H, H),
            "gru.reset_weight": (N, H, H),
            "gru.output_projection.weight": (D, N * H),
            "gru.output_projection.bias": (D,),
            "norm_feedforward.weight": (D,),
            "gate.weight": (config.hidden, D),
            "up.weight": (config.hidden, D),
            "down.weight": (D, config.hidden),
        }
        found |= {f"blocks.{index}.{name}": shape for name, shape in block.items()}
    return found | {"norm.weight": (D,), "head.weight": (config.vocabulary, D)}


def initial(config: GRUModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Initial values, float32, the same for both frameworks.

    Linear maps are normal with a standard deviation of ``fan_in^−½``, the last of each residual branch divided by
    ``(2·blocks)^½``; state weights are uniform within ``±H^−½``; norms are 1. Biases are 0, except those of the
    forget gate: spread evenly from 1 to 5, so that the units remember for 2 to 150 steps.
    """
    rng = np.random.default_rng((seed, 1))
    values = {}
    for name, shape in shapes(config).items():
        if name.endswith(("state_weight", "forget_weight", "reset_weight")):
            bound = config.head_dim**-0.5
            value = rng.uniform(-bound, bound, shape)
        elif name.endswith("bias"):
            value = np.zeros(shape)
            if "input_projection" in name:
                D = config.width
                value[D : 2 * D] = np.tile(np.linspace(1, 5, config.head_dim), config.heads)
        elif len(shape) == 1:
            value = np.ones(shape)
        else:
            deep = 2 * config.blocks if name.endswith(("output_projection.weight", "down.weight")) else 1
            fan_in = 1 if name == "embedding.weight" else shape[1]
            value = rng.standard_normal(shape) * (fan_in * deep) ** -0.5
        values[name] = value.astype(np.float32)
    return values


def to_flax(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Parameters by name as the tree of the Flax model, without the collection's name."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = _flax_path(name)
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value.T if last == "kernel" else value
    return tree


def from_flax(config: GRUModelConfig, tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tree of the Flax model as parameters by name."""
    values = {}
    for name in shapes(config):
        *path, last = _flax_path(name)
        at: Any = tree
        for part in path:
            at = at[part]
        value = np.asarray(at[last])
        values[name] = value.T.copy() if last == "kernel" else value
    return values


def _flax_path(name: str) -> list[str]:
    """``blocks.0.gate.weight`` as ``["blocks_0", "gate", "kernel"]``."""
    *path, last = name.replace("blocks.", "blocks_").split(".")
    if last == "weight":
        last = "scale" if path[-1].startswith("norm") else "embedding" if path[-1] == "embedding" else "kernel"
    return [*path, last]
