"""The GRU language model in PyTorch: residual blocks of our `GRU` layer and a gated feed-forward layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from examples.language_model.gru_parameters import EPSILON, GRUModelConfig
from torch_impl import GRU


class Block(nn.Module):
    """``x + GRU(norm(x))``, then ``x + down(silu(gate(norm(x))) ⊙ up(norm(x)))``."""

    def __init__(self, config: GRUModelConfig) -> None:
        super().__init__()
        D, N = config.width, config.heads
        self.norm_gru = nn.RMSNorm(D, eps=EPSILON)
        self.gru = GRU(D, config.head_dim, D, N, N, N, N, N, N, add_bias=True, gradient_clipping=None)
        self.norm_feedforward = nn.RMSNorm(D, eps=EPSILON)
        self.gate = nn.Linear(D, config.hidden, bias=False)
        self.up = nn.Linear(D, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, D, bias=False)

    def forward(self, x: Tensor, state: Tensor | None, **packing: Any) -> tuple[Tensor, Tensor]:
        y, last = self.gru(self.norm_gru(x), state, **packing)
        x = x + y
        z = self.norm_feedforward(x)
        return x + self.down(nn.functional.silu(self.gate(z)) * self.up(z)), last


class GRUModel(nn.Module):
    """A language model of GRU blocks.

    Args:
        config: the sizes of the model.
    """

    def __init__(self, config: GRUModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(config.width, eps=EPSILON)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(
        self,
        tokens: Tensor,
        state: Sequence[Tensor] | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits of the next token after every token.

        Args:
            tokens: ``(B, S)``, or ``(T,)`` with `cu_seqlens`; integers.
            state: for each block ``(B, N, H)``; None means zeros.
            cu_seqlens, max_seqlen: as in `torch_impl.gru`.
            return_state: whether to return the states after the last tokens too.

        Returns:
            Logits ``(B, S, vocabulary)`` or ``(T, vocabulary)``, with `return_state` ``(logits, states)``.
        """
        x = self.embedding(tokens)
        states = []
        for block, initial in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, last = block(x, initial, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
            states.append(last)
        logits = self.head(self.norm(x))
        return (logits, states) if return_state else logits
