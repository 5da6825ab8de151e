"""The framework-independent part of the model: sizes, and names, shapes and initial values of parameters.

The model is the xLSTM of `examples.xlstm`, some of whose blocks may have a layer of the sLSTM or of the GRU instead of
the mLSTM's. Its names are those of the PyTorch model; a linear map is ``(out, in)``.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.language_model.corpus import VOCABULARY
from examples.language_model.settings import Settings
from examples.xlstm import parameters
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.tensors import tensor_shapes
from reference import sLSTM


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A recurrent layer of our packages, which takes the place of the mLSTM's in a block.

    Attributes:
        weights: (N, H) → the shapes of its recurrent weights, by name.
        gates: number of gates in its input projection.
        initial: (configuration, place in the model from 0 to 1, generator) → initial values of its recurrent weights
            and of its input projection, by name.
        ffn_factor: inner width of the feed-forward network after it, relative to D; None means that of the mLSTM's.
    """

    weights: Callable[[int, int], dict[str, tuple[int, ...]]]
    gates: int
    initial: Callable[[XLSTMConfig, float, np.random.Generator], dict[str, np.ndarray]]
    ffn_factor: float | None = None


def config_of(settings: Settings) -> XLSTMConfig:
    """The model of the settings; queries and keys are half as wide as values."""
    return XLSTMConfig(
        vocab_size=VOCABULARY,
        hidden_size=settings.width,
        num_blocks=len(settings.cells),
        num_heads=settings.heads,
        # Without blocks of the mLSTM there are no queries and keys, and the width may be odd.
        qk_dim_factor=0.5 if "mlstm" in settings.cells else 1.0,
        ffn_round_up_to_multiple_of=32,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def ffn_config(config: XLSTMConfig, cell: str) -> XLSTMConfig:
    """The configuration whose `ffn_dim` is the inner width after a layer of this cell."""
    factor = LAYERS[cell].ffn_factor
    return config if factor is None else dataclasses.replace(config, ffn_proj_factor=factor)


def shapes(config: XLSTMConfig, cells: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by its name."""
    found = {}
    for name, shape in tensor_shapes(config).items():
        _, blocks, index, *_ = [*name.split("."), "", ""]
        if blocks != "blocks" or cells[int(index)] == "mlstm":
            found[name] = shape
    for index, cell in enumerate(cells):
        if cell != "mlstm":
            found |= {f"backbone.blocks.{index}.{name}": shape for name, shape in _block(config, cell).items()}
    return found


def initial(config: XLSTMConfig, cells: tuple[str, ...], seed: int) -> dict[str, np.ndarray]:
    """Initial values, float32, the same for both frameworks.

    Linear maps are normal with a standard deviation of ``fan_in^−½``, the last of each residual branch divided by
    ``(2·blocks)^½``. Gates of the mLSTM are constant at first, as in the published model: their weights are 0, the
    biases of the forget gates are spread evenly from 3 to 6, so that heads remember for 20 to 400 steps, and those of
    the input gates are −10. Input projections and recurrent weights of other layers are those of `LAYERS`.
    """
    rng = np.random.default_rng((seed, 1))
    of_layers = {
        f"backbone.blocks.{index}.layer.{name}": value
        for index, cell in enumerate(cells)
        if cell != "mlstm"
        for name, value in LAYERS[cell].initial(config, index / max(len(cells) - 1, 1), rng).items()
    }
    values = {}
    for name, shape in shapes(config, cells).items():
        if name in of_layers:
            value = of_layers[name]
        elif name.endswith("fgate_preact.bias"):
            value = np.linspace(3, 6, config.num_heads)
        elif name.endswith("igate_preact.bias"):
            value = np.full(shape, -10.0)
        elif name.endswith("output_projection.bias") or ("gate_preact" in name and "ogate" not in name):
            value = np.zeros(shape)
        elif len(shape) == 1:
            value = np.ones(shape)
        else:
            last = name.endswith(("out_proj.weight", "proj_down.weight", "output_projection.weight"))
            fan_in = 1 if name.endswith("embeddings.weight") else shape[1]
            value = rng.standard_normal(shape) * (fan_in * (2 * config.num_blocks if last else 1)) ** -0.5
        values[name] = value.astype(np.float32)
    return values


def to_flax(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Parameters by name as the tree of the Flax model, without the collection's name."""
    return parameters.tree_of({_of_dense(name): _turned(name, value) for name, value in values.items()})


def from_flax(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tree of the Flax model as parameters by name."""
    found = {
        name.replace(".kernel", ".weight"): value for name, value in parameters.from_flax({"params": tree}).items()
    }
    return {name: _turned(name, value) for name, value in found.items()}


def _block(config: XLSTMConfig, cell: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a block with a recurrent layer, by name."""
    D, N, inner, layer = config.hidden_size, config.num_heads, ffn_config(config, cell).ffn_dim, LAYERS[cell]
    return {
        "norm_layer.weight": (D,),
        "layer.input_projection.weight": (layer.gates * D, D),
        "layer.input_projection.bias": (layer.gates * D,),
        **{f"layer.{name}": shape for name, shape in layer.weights(N, D // N).items()},
        "layer.output_projection.weight": (D, D),
        "layer.output_projection.bias": (D,),
        "norm_ffn.weight": (D,),
        "ffn.proj_up_gate.weight": (inner, D),
        "ffn.proj_up.weight": (inner, D),
        "ffn.proj_down.weight": (D, inner),
    }


def _is_dense(name: str) -> bool:
    """Whether Flax stores the parameter as a kernel, ``(in, out)``."""
    return name.endswith("_projection.weight")


def _of_dense(name: str) -> str:
    return name.replace(".weight", ".kernel") if _is_dense(name) else name


def _turned(name: str, value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value.T) if _is_dense(name) else value


def _gru(config: XLSTMConfig, place: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """State weights are uniform within ``±H^−½``; the biases of the forget gates of each head are spread evenly from 1
    to 5, so that the units remember for 2 to 150 steps."""
    D, N = config.hidden_size, config.num_heads
    H = D // N
    bias = np.zeros((3, N, H))
    bias[1] = np.linspace(1, 5, H)
    return {
        "input_projection.weight": rng.standard_normal((3 * D, D)) * D**-0.5,
        "input_projection.bias": bias.ravel(),
        **{name: rng.uniform(-(H**-0.5), H**-0.5, shape) for name, shape in _gru_weights(N, H).items()},
    }


def _gru_weights(N: int, H: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}_weight": (N, H, H) for name in ("state", "forget", "reset")}


def _slstm(config: XLSTMConfig, place: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The initial values of the layer, whose forget gates depend on its place among the blocks."""
    D, N = config.hidden_size, config.num_heads
    found = sLSTM(D, D // N, D, N, True, None, depth=place, rng=int(rng.integers(2**31))).params
    projection = found["input_projection"]
    return {
        "input_projection.weight": projection["kernel"].T,
        "input_projection.bias": projection["bias"],
        **{name: found[name] for name in _slstm_weights(N, D // N)},
    }


def _slstm_weights(N: int, H: int) -> dict[str, tuple[int, ...]]:
    return {f"weight_{gate}": (N, H, H) for gate in "zifo"}


LAYERS = {
    "slstm": Layer(weights=_slstm_weights, gates=4, initial=_slstm, ffn_factor=4 / 3),
    "gru": Layer(weights=_gru_weights, gates=3, initial=_gru),
}
"""The layers that blocks may have instead of the mLSTM's. The feed-forward network after an sLSTM is narrower and has a
GeLU, as in Beck et al. (arXiv:2405.04517, figure 10)."""
