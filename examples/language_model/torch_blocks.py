"""The blocks of the model in PyTorch whose layer is not the mLSTM's, and the model itself."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from examples.language_model.parameters import ffn_config
from examples.xlstm import torch_model
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.torch_model import XLSTM, FeedForward, RMSNorm
from torch_impl import GRU, sLSTM


class Block(nn.Module):
    """``x + layer(norm(x))``, then ``x + ffn(norm(x))``, with a layer of the sLSTM or of the GRU.

    Args:
        config: the sizes of the model.
        cell: ``slstm`` or ``gru``.
    """

    def __init__(self, config: XLSTMConfig, cell: str) -> None:
        super().__init__()
        D, norm = config.hidden_size, (config.norm_eps, False, config.norm_reduction_force_float32)
        layer, activation = LAYERS[cell]
        self.norm_layer = RMSNorm(D, *norm)
        self.layer = layer(D, config.num_heads)
        self.norm_ffn = RMSNorm(D, *norm)
        self.ffn = FeedForward(ffn_config(config, cell), activation)

    def reset_layer(self) -> None:
        """Initialise the layer as our packages do."""
        self.layer.reset_parameters()

    def forward(self, x: Tensor, memory: Any, **how: Any) -> tuple[Tensor, Any]:
        y, after = self.layer(self.norm_layer(x), memory, **how)
        x = x + y
        return x + self.ffn(self.norm_ffn(x)), after


def model_of(config: XLSTMConfig, cells: tuple[str, ...]) -> XLSTM:
    """The model whose blocks have these cells."""
    return XLSTM(config, [torch_model.Block(config) if cell == "mlstm" else Block(config, cell) for cell in cells])


def _slstm(D: int, N: int) -> sLSTM:
    return sLSTM(D, D // N, D, N)


def _gru(D: int, N: int) -> GRU:
    return GRU(D, D // N, D, N)


LAYERS: dict[str, tuple[Callable[[int, int], Any], Callable[[Tensor], Tensor]]] = {
    "slstm": (_slstm, F.gelu),
    "gru": (_gru, F.silu),
}
"""For each cell: (D, N) → its layer, and the activation of the feed-forward network after it."""
