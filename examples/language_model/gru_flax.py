"""The GRU language model in Flax: residual blocks of our `GRU` layer and a gated feed-forward layer."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.language_model.gru_parameters import EPSILON, GRUModelConfig
from jax_impl import GRU


class Block(nn.Module):
    """``x + GRU(norm(x))``, then ``x + down(silu(gate(norm(x))) ⊙ up(norm(x)))``."""

    config: GRUModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, state: jax.Array | None, **packing: Any) -> tuple[jax.Array, jax.Array]:
        D, N, dtype = self.config.width, self.config.heads, self.dtype
        gru = GRU(
            D, self.config.head_dim, D, N, N, N, N, N, N, add_bias=True, gradient_clipping=None, dtype=dtype, name="gru"
        )
        y, last = gru(nn.RMSNorm(epsilon=EPSILON, dtype=dtype, name="norm_gru")(x), state, **packing)
        x = x + y
        z = nn.RMSNorm(epsilon=EPSILON, dtype=dtype, name="norm_feedforward")(x)
        gate = nn.Dense(self.config.hidden, use_bias=False, dtype=dtype, name="gate")(z)
        up = nn.Dense(self.config.hidden, use_bias=False, dtype=dtype, name="up")(z)
        return x + nn.Dense(D, use_bias=False, dtype=dtype, name="down")(nn.silu(gate) * up), last


class GRUModel(nn.Module):
    """A language model of GRU blocks.

    Attributes:
        config: the sizes of the model.
        dtype: the dtype of the computation; parameters and the residual stream are float32.
    """

    config: GRUModelConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        state: Sequence[jax.Array] | None = None,
        *,
        cu_seqlens: jax.Array | None = None,
        max_seqlen: int | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits of the next token after every token.

        Args:
            tokens: ``(B, S)``, or ``(T,)`` with `cu_seqlens`; integers.
            state: for each block ``(B, N, H)``; None means zeros.
            cu_seqlens, max_seqlen: as in `jax_impl.gru`.
            return_state: whether to return the states after the last tokens too.

        Returns:
            Logits ``(B, S, vocabulary)`` or ``(T, vocabulary)``, with `return_state` ``(logits, states)``.
        """
        x = nn.Embed(self.config.vocabulary, self.config.width, name="embedding")(tokens)
        states = []
        for index, initial in zip(range(self.config.blocks), state or [None] * self.config.blocks, strict=True):
            block = Block(self.config, self.dtype, name=f"blocks_{index}")
            x, last = block(x, initial, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
            states.append(last)
        x = nn.RMSNorm(epsilon=EPSILON, dtype=self.dtype, name="norm")(x)
        logits = nn.Dense(self.config.vocabulary, use_bias=False, dtype=self.dtype, name="head")(x)
        return (logits, states) if return_state else logits
