"""A small xLSTM model and random parameters for it, shared by the tests of `examples.xlstm`."""

import ml_dtypes
import numpy as np

from examples.xlstm.config import XLSTMConfig
from examples.xlstm.tensors import tensor_shapes

SMALL = XLSTMConfig(
    vocab_size=29, hidden_size=24, num_blocks=2, num_heads=3, ffn_round_up_to_multiple_of=8, eos_token_id=None
)


def random_arrays(config: XLSTMConfig = SMALL, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters such that every one of them matters to the logits."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(ml_dtypes.bfloat16) if config.dtype == "bfloat16" else np.dtype(config.dtype)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        spread = 1 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.3
        shift = 1.0 if "norm" in name and name.endswith("weight") else 2.0 if "fgate_preact.bias" in name else 0.0
        return (shift + spread * rng.standard_normal(shape)).astype(dtype)

    return {name: draw(name, shape) for name, shape in tensor_shapes(config).items()}
