"""A small xLSTM model, shared by the tests of `examples.xlstm`."""

import numpy as np

from examples.xlstm.config import XLSTMConfig
from examples.xlstm.draw import RandomTensors

SMALL = XLSTMConfig(
    vocab_size=29, hidden_size=24, num_blocks=2, num_heads=3, ffn_round_up_to_multiple_of=8, eos_token_id=None
)


def random_arrays(config: XLSTMConfig = SMALL, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters such that every one of them matters to the logits."""
    return dict(RandomTensors(config, seed))
