"""The mLSTM language model: the xLSTM of `examples.xlstm` in the sizes of a run, and its initial values."""

import numpy as np

from examples.language_model.corpus import VOCABULARY
from examples.language_model.settings import Settings
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.tensors import tensor_shapes


def config_of(settings: Settings) -> XLSTMConfig:
    """The model of the settings; queries and keys are half as wide as values."""
    return XLSTMConfig(
        vocab_size=VOCABULARY,
        hidden_size=settings.width,
        num_blocks=settings.blocks,
        num_heads=settings.heads,
        qk_dim_factor=0.5,
        ffn_round_up_to_multiple_of=32,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def initial(config: XLSTMConfig, seed: int) -> dict[str, np.ndarray]:
    """Initial values, float32, the same for both frameworks.

    Linear maps are normal with a standard deviation of ``fan_in^−½``, the last of each residual branch divided by
    ``(2·blocks)^½``. Gates are constant at first, as in the published model: their weights are 0, the biases of the
    forget gates are spread evenly from 3 to 6, so that heads remember for 20 to 400 steps, and those of the input gates
    are −10.
    """
    rng = np.random.default_rng((seed, 1))
    values = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("fgate_preact.bias"):
            value = np.linspace(3, 6, config.num_heads)
        elif name.endswith("igate_preact.bias"):
            value = np.full(shape, -10.0)
        elif "gate_preact" in name and "ogate" not in name:
            value = np.zeros(shape)
        elif len(shape) == 1:
            value = np.ones(shape)
        else:
            deep = 2 * config.num_blocks if name.endswith(("out_proj.weight", "proj_down.weight")) else 1
            fan_in = 1 if name.endswith("embeddings.weight") else shape[1]
            value = rng.standard_normal(shape) * (fan_in * deep) ** -0.5
        values[name] = value.astype(np.float32)
    return values
