"""The blocks of the model in Flax whose layer is not the mLSTM's, and the model itself."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.language_model.parameters import ffn_config
from examples.xlstm import flax_model
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.flax_model import XLSTM, FeedForward, RMSNorm
from jax_impl import GRU, sLSTM


class Block(nn.Module):
    """``x + layer(norm(x))``, then ``x + ffn(norm(x))``, with a layer of the sLSTM or of the GRU.

    Attributes:
        config: the sizes of the model.
        dtype, param_dtype: as in `XLSTM`.
        cell: ``slstm`` or ``gru``.
    """

    config: XLSTMConfig
    dtype: Any
    param_dtype: Any
    cell: str

    @nn.compact
    def __call__(self, x: jax.Array, memory: Any, **how: Any) -> tuple[jax.Array, Any]:
        config, dtypes = self.config, {"dtype": self.dtype, "param_dtype": self.param_dtype}
        make, activation = LAYERS[self.cell]
        norm = (config.norm_eps, False, config.norm_reduction_force_float32, self.param_dtype)
        layer = make(config.hidden_size, config.num_heads, **dtypes, name="layer")
        y, after = layer(RMSNorm(*norm, name="norm_layer")(x), memory, **how)
        x = x + y
        ffn = FeedForward(ffn_config(config, self.cell), **dtypes, activation=activation, name="ffn")
        return x + ffn(RMSNorm(*norm, name="norm_ffn")(x)), after


def model_of(config: XLSTMConfig, cells: tuple[str, ...], dtype: Any) -> XLSTM:
    """The model whose blocks have these cells."""
    blocks = (flax_model.Block if cell == "mlstm" else functools.partial(Block, cell=cell) for cell in cells)
    return XLSTM(config, dtype, blocks=tuple(blocks))


def _slstm(D: int, N: int, **others: Any) -> sLSTM:
    return sLSTM(D, D // N, D, N, **others)


def _gru(D: int, N: int, **others: Any) -> GRU:
    return GRU(D, D // N, D, N, **others)


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """``x Φ(x)`` with Φ the standard normal distribution, not an approximation.

    Its derivative is written out, because that of ``erfc`` in JAX 0.12.0 is refused inside `jax.shard_map`.
    """
    return jax.nn.gelu(x, approximate=False)


@gelu.defjvp
def _derivative_of_gelu(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    slope = jax.lax.erfc(-x * math.sqrt(0.5)) / 2 + x * jnp.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return gelu(x), dx * slope


LAYERS: dict[str, tuple[Callable[..., nn.Module], Callable[[jax.Array], jax.Array]]] = {
    "slstm": (_slstm, gelu),
    "gru": (_gru, jax.nn.silu),
}
"""For each cell: (D, N) → its layer, and the activation of the feed-forward network after it."""
