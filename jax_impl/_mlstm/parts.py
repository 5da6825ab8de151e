"""The heads of a call in parts that a CPU computes side by side, and their arrays without axes of size 1.

XLA computes a batch of small products on one thread of a CPU. A second thread gets work only when many operations are
ready at once, which two independent parts of a program provide. And of two arrays that differ only in where they count
an axis of size 1, XLA makes one by copying the other; arrays without such axes are not copied.

Both are done only if the CPU is a single device. Where heads or sequences are divided among devices, they would move
data between these.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._mlstm.arguments import Options
from jax_impl._mlstm.blocks import block_size

COUNT = 2
"""Number of parts."""

CHUNKS_FORWARD, CHUNKS_BACKWARD = 4, 2
"""Number of chunks of a block from which parts of the forward pass, or of the backward pass, are faster. Fewer chunks
leave little that passes from chunk to chunk, during which a thread would wait; the backward pass has more operations
that wait for each other."""

LEAST = 4
"""Number of blocks from which a call is long enough to be compiled in parts, which takes longer."""


def cpu_is_one_device() -> bool:
    """Whether JAX shows this process's CPU as one device, and there is no other process's."""
    return jax.device_count("cpu") == 1


class Part(NamedTuple):
    """A range of heads of all sequences.

    Attributes:
        first, heads: the first head and the number of heads.
        kept: the axes of sequences and heads of arrays in chunks, without those of size 1 if they can be left out.
        B: the number of sequences.
    """

    first: int
    heads: int
    kept: tuple[int, ...]
    B: int

    def of(self, tree: Any, axis: int) -> Any:
        """The heads of this part, from arrays in which they have this axis."""

        def cut(x: jax.Array) -> jax.Array:
            whole = x.shape[axis] == self.heads
            return x if whole else jax.lax.slice_in_dim(x, self.first, self.first + self.heads, axis=axis)

        return jax.tree.map(cut, tree)

    def squeezed(self, tree: Any, axis: int) -> Any:
        """Arrays with the axes `kept` in place of those of all sequences, at ``axis``, and of heads, which follows."""
        return self._reshaped(tree, axis, (self.B, self.heads), self.kept)

    def restored(self, tree: Any, axis: int) -> Any:
        """Inverse of `squeezed`."""
        return self._reshaped(tree, axis, self.kept, (self.B, self.heads))

    def _reshaped(self, tree: Any, axis: int, old: tuple[int, ...], new: tuple[int, ...]) -> Any:
        if len(old) == len(new):
            return tree
        return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], *new, *x.shape[axis + len(old) :]), tree)


class Division(NamedTuple):
    """The division of a call into blocks, and of a block into parts.

    Attributes:
        size: steps per block, the same in both passes.
        forward, backward: the parts in the forward and in the backward pass.
    """

    size: int
    forward: list[Part]
    backward: list[Part]


def divided(options: Options, B: int, S: int, N: int) -> Division:
    """The division of a call: parts are used where they are faster."""
    if not options.one_device or is_symbolic(B, S, N):
        whole = [Part(0, N, (B, N), B)]
        return Division(block_size(options, B, S, N), whole, whole)

    def parts(heads: int) -> list[Part]:
        kept = tuple(size for size in (B, heads) if size != 1)
        return [Part(first, heads, kept, B) for first in range(0, N, heads)]

    L, whole = options.chunkwise.L, parts(N) if N else [Part(0, 0, (B, 0), B)]
    if N and N % COUNT == 0 and B * S * N >= LEAST * options.block:
        size = block_size(options, B, S, N // COUNT)
        if size >= CHUNKS_BACKWARD * L:
            several = parts(N // COUNT)
            return Division(size, several if size >= CHUNKS_FORWARD * L else whole, several)
    return Division(block_size(options, B, S, N), whole, whole)


def joined(parts: list[Part], trees: list[Any], axis: int) -> Any:
    """Arrays of all heads, from those of every part, squeezed, in which the axis of sequences would be ``axis``."""
    trees = [part.restored(tree, axis) for part, tree in zip(parts, trees, strict=True)]
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x, axis + 1), *trees)


def side_by_side(trees: list[Any]) -> list[Any]:
    """The arrays of all parts, which XLA keeps in memory at the same time; else parts would wait to reuse it."""
    return trees if len(trees) == 1 else jax.lax.optimization_barrier(trees)
