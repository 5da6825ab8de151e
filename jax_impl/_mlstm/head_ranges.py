"""Ranges of the heads of a call, which a CPU computes side by side, and their arrays without axes of size 1.

XLA computes a batch of small products on one thread of a CPU. A second thread gets work only when many operations are
ready at once, which two independent ranges of heads provide. And of two arrays that differ only in where they count
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
"""Number of ranges."""

CHUNKS_FORWARD, CHUNKS_BACKWARD = 4, 2
"""Number of chunks of a block from which ranges are faster in the forward pass, or in the backward pass. Fewer chunks
leave little that passes from chunk to chunk, during which a thread would wait; the backward pass has more operations
that wait for each other."""

LEAST = 4
"""Number of blocks from which a call is long enough to be compiled in ranges, which takes longer."""


def cpu_is_one_device() -> bool:
    """Whether JAX shows this process's CPU as one device, and there is no other process's."""
    return jax.device_count("cpu") == 1


class HeadRange(NamedTuple):
    """A range of heads of all sequences.

    Attributes:
        first, count: the first head and the number of heads.
        kept: the axes of sequences and heads of arrays in chunks, without those of size 1 if they can be left out.
        B: the number of sequences.
    """

    first: int
    count: int
    kept: tuple[int, ...]
    B: int

    def of(self, tree: Any, axis: int) -> Any:
        """The heads of this range, from arrays in which they have this axis."""

        def cut(x: jax.Array) -> jax.Array:
            whole = x.shape[axis] == self.count
            return x if whole else jax.lax.slice_in_dim(x, self.first, self.first + self.count, axis=axis)

        return jax.tree.map(cut, tree)

    def squeezed(self, tree: Any, axis: int) -> Any:
        """Arrays with the axes `kept` in place of those of all sequences, at ``axis``, and of heads, which follows."""
        return self._reshaped(tree, axis, (self.B, self.count), self.kept)

    def restored(self, tree: Any, axis: int) -> Any:
        """Inverse of `squeezed`."""
        return self._reshaped(tree, axis, self.kept, (self.B, self.count))

    def _reshaped(self, tree: Any, axis: int, old: tuple[int, ...], new: tuple[int, ...]) -> Any:
        if len(old) == len(new):
            return tree
        return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], *new, *x.shape[axis + len(old) :]), tree)


class Division(NamedTuple):
    """The division of a call into blocks, and of its heads into ranges.

    Attributes:
        size: steps per block, the same in both passes.
        forward, backward: the ranges in the forward and in the backward pass.
    """

    size: int
    forward: list[HeadRange]
    backward: list[HeadRange]


def divided(options: Options, B: int, S: int, N: int) -> Division:
    """The division of a call: several ranges where they are faster."""
    if not options.one_device or is_symbolic(B, S, N):
        whole = [HeadRange(0, N, (B, N), B)]
        return Division(block_size(options, B, S, N), whole, whole)

    def ranges(heads: int) -> list[HeadRange]:
        kept = tuple(size for size in (B, heads) if size != 1)
        return [HeadRange(first, heads, kept, B) for first in range(0, N, heads)]

    L, whole = options.chunkwise.L, ranges(N) if N else [HeadRange(0, 0, (B, 0), B)]
    if N and N % COUNT == 0 and B * S * N >= LEAST * options.block:
        size = block_size(options, B, S, N // COUNT)
        if size >= CHUNKS_BACKWARD * L:
            several = ranges(N // COUNT)
            return Division(size, several if size >= CHUNKS_FORWARD * L else whole, several)
    return Division(block_size(options, B, S, N), whole, whole)


def joined(ranges: list[HeadRange], trees: list[Any], axis: int) -> Any:
    """Arrays of all heads, from those of every range, squeezed, in which the axis of sequences would be ``axis``."""
    trees = [heads.restored(tree, axis) for heads, tree in zip(ranges, trees, strict=True)]
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x, axis + 1), *trees)


def side_by_side(trees: list[Any]) -> list[Any]:
    """The arrays of all ranges, which XLA keeps in memory at the same time; else ranges would wait to reuse it."""
    return trees if len(trees) == 1 else jax.lax.optimization_barrier(trees)
