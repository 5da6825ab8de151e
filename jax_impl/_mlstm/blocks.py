"""Chunks of the mLSTM in blocks, and the steps with which its chunks are padded."""

import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._mlstm.arguments import Options

PADDING = {"i": -jnp.inf, "f": jnp.inf}
"""Padding values of the inputs by name; all other inputs are padded with 0. Such a step writes nothing and forgets
nothing."""


def block_size(options: Options, B: int, S: int, N: int) -> int:
    """Steps per block, which bounds the memory in use.

    It is a whole number of chunks, in blocks of equal length; one chunk if a size is symbolic.
    """
    L = options.chunkwise.L
    if is_symbolic(B, S):
        return L
    blocks = max(1, -(-B * S * N // options.block))
    return L * max(1, -(-S // (blocks * L)))
