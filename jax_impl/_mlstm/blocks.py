"""The division of a call into blocks, a few chunks of all sequences and heads, which bounds the memory in use."""

from jax_impl._arrays import is_symbolic
from jax_impl._mlstm.arguments import Options


def block_size(options: Options, B: int, S: int, N: int) -> int:
    """Steps per block: a whole number of chunks, in blocks of equal length; one chunk if a size is symbolic."""
    L = options.chunkwise.L
    if is_symbolic(B, S):
        return L
    blocks = max(1, -(-B * S * N // options.block))
    return L * max(1, -(-S // (blocks * L)))
