"""The floor of the mLSTM's normaliser, ``h = num / (max(|ν|, floor) + eps)``."""

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_M = 64.0
"""The stabiliser above which the floor exp(−m) no longer falls; exp(−64) is still a float32."""


class Normaliser(NamedTuple):
    """The normaliser's floor, which is exp(−min(m, 64)) or 1, and the number that is added to the normaliser."""

    stabilize_correctly: bool
    eps: float

    def floor(self, m: Tensor) -> Tensor:
        """The normaliser's floor at each stabiliser m."""
        return m.clamp(max=LARGEST_M).neg_().exp_() if self.stabilize_correctly else torch.ones_like(m)
