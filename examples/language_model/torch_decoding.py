"""A trained model as a decoder in PyTorch."""

from typing import Any

import numpy as np
import torch

from examples.language_model.kinds import Kind, Values
from examples.language_model.sampling import Decoder
from examples.language_model.torch_training import load


def decoder(kind: Kind, values: Values) -> Decoder:
    """The decoder of a model with these parameters."""
    model = load(kind, values).eval()

    @torch.no_grad()
    def decode(tokens: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        logits, state = model(torch.from_numpy(tokens)[None], state, return_state=True)
        return logits[0, -1].float().numpy(), state

    return decode
