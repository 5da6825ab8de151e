"""The layout of tokens in chunks: the only change of layout before, and after, the chunkwise mLSTM.

The chunks of a sequence have ranks 0, 1, …. Chunks are ordered by rank and, within a rank, by sequence, with the
sequences that have the most chunks first. The sequences that have a chunk of a given rank are therefore a prefix; dense
batches and packed ones are scanned in the same way, and no idle step is computed. A row is one chunk of one head; there
are ``rows = chunks·N``.

Steps after the end of a sequence (its last chunk may be partly empty) hold q = k = v = 0, i = −∞ and f = +∞: they write
nothing and forget nothing.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch

_LARGE = 4096
"""Minimum number of elements of a chunk, all heads together, for which an operator of its own is faster on a CPU."""


@dataclass(frozen=True)
class Ranks:
    """The sequences that have a chunk of each rank, for scans over the states between chunks.

    Attributes:
        sequences: B, including sequences without chunks.
        running: for every rank, the number of sequences that have a chunk of that rank; it never increases.
    """

    sequences: int
    running: tuple[int, ...]

    @property
    def chunks(self) -> int:
        return sum(self.running)

    @property
    def uniform(self) -> bool:
        """Whether every sequence has a chunk of every rank."""
        return not self.running or self.running[-1] == self.sequences

    def between(self, first: int, last: int) -> "Ranks":
        """Restrict to these ranks, with the sequences that have chunks in them."""
        running = self.running[first:last]
        return Ranks(running[0] if running else 0, running)

    @property
    def offsets(self) -> np.ndarray:
        """The number of chunks before those of every rank, and the number of all."""
        return np.cumsum([0, *self.running])

    def sequence_and_rank(self) -> tuple[np.ndarray, np.ndarray]:
        """The sequence and the rank of every chunk."""
        rank = np.repeat(np.arange(len(self.running)), self.running)
        return np.arange(self.chunks) - self.offsets[rank], rank

    def forward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows at which a scan that writes ``[initial states of all sequences | end state of every chunk]`` finds the
        state at the start of every chunk, and the final state of every sequence."""
        sequence, rank = self.sequence_and_rank()
        # Row of the end of a sequence's chunk of each rank, with that of its initial state before them.
        first = np.concatenate([[0], self.sequences + self.offsets[:-1]])
        sequences = np.arange(self.sequences)
        counts = np.searchsorted(-np.asarray(self.running, int), -sequences, side="left")
        return first[rank] + sequence, first[counts] + sequences

    def backward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows at which a scan that writes ``[gradient at the start of every chunk | final cotangents of sequences]``
        finds the gradient at the end of every chunk, and that of every sequence's initial state."""
        sequence, rank = self.sequence_and_rank()
        following = np.asarray([*self.running[1:], 0], int)
        final, sequences = self.chunks, np.arange(self.sequences)
        ends = np.where(sequence < following[rank], self.offsets[1:][rank], final) + sequence
        return ends, np.where(sequences < (self.running[0] if self.running else 0), 0, final) + sequences


def _longer(shape: tuple[int, ...], more: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + more) if more else shape


class DenseChunkLayout:
    """Chunks of ``(B, S, N, ·)``."""

    def __init__(self, B: int, S: int, N: int, L: int):
        self.B, self.S, self.N, self.L = B, S, N, L
        count = -(-S // L)
        self.ranks = Ranks(B, (B,) * count)

    def gather(
        self, x: torch.Tensor, first: int, last: int, dtype: torch.dtype, padding: float = 0.0, more: int = 0
    ) -> torch.Tensor:
        """The chunks of some ranks: ``(B, S, N, ...)`` → ``(rows, L, ...)`` in ``dtype``, a new tensor.

        With ``more``, the last axis has that many more columns, which are not written.
        """
        whole = x.new_empty((last - first, self.B, self.N, self.L, *_longer(x.shape[3:], more)), dtype=dtype)
        y = whole[..., : x.shape[-1]] if more else whole
        for part, steps, padded in self._parts(x, y, first, last):
            part.copy_(steps)
            if padded is not None:
                padded.fill_(padding)
        return whole.flatten(0, 2)

    def scatter(self, y: torch.Tensor, x: torch.Tensor, first: int, last: int) -> None:
        """Write the chunks of some ranks, ``(rows, L, ...)``, to their positions in ``(B, S, N, ...)``."""
        y = y.unflatten(0, (last - first, self.B, self.N))
        for part, steps, _ in self._parts(x, y, first, last):
            steps.copy_(part)

    def _parts(
        self, x: torch.Tensor, y: torch.Tensor, first: int, last: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """The whole chunks of ``y``, ``(ranks, B, N, L, ...)``, then the partly filled one, with steps and padding."""
        L, (full, rest) = self.L, divmod(self.S, self.L)
        whole = min(last, full) - first
        if whole > 0:
            steps = x[:, first * L : (first + whole) * L].unflatten(1, (whole, L))
            yield y[:whole], steps.movedim(0, 1).movedim(3, 2), None
        if rest and last > full:
            yield y[-1, :, :, :rest], x[:, full * L :].transpose(1, 2), y[-1, :, :, rest:]

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """The values of all sequences, one after the other."""
        return x

    def place(self, y: torch.Tensor, x: torch.Tensor) -> None:
        """Write the values of all sequences."""
        x.copy_(y)


class PackedChunkLayout:
    """Chunks of some sequences of ``(T, N, ·)``.

    Args:
        cu_seqlens: the start and end of every sequence.
        sequences: positions of the sequences, the longest first.
    """

    def __init__(self, cu_seqlens: np.ndarray, sequences: np.ndarray, N: int, L: int, device: torch.device):
        self.N, self.L, self._device = N, L, device
        starts, ends = cu_seqlens[:-1][sequences], cu_seqlens[1:][sequences]
        counts = -(-(ends - starts) // L)
        running = len(counts) - np.cumsum(np.bincount(counts, minlength=1))
        self.ranks = Ranks(len(counts), tuple(running[running > 0].tolist()))
        self._at, rank = self.ranks.sequence_and_rank()
        self._first = starts[self._at] + L * rank
        self._steps = np.minimum(ends[self._at] - self._first, L)
        tokens = self._first[:, None, None] + np.arange(L)
        heads = np.arange(N)[:, None]
        # (chunks, N, L): the row of a (T·N, ·) tensor that each step of each chunk of each head reads.
        self._padded = np.broadcast_to(np.arange(L) >= self._steps[:, None, None], (*tokens.shape[:1], N, L))
        self._rows = np.where(self._padded, 0, tokens * N + heads)
        self._sequences = self._index(sequences)

    def part(self, first: int, last: int) -> tuple["PackedChunkLayout", torch.Tensor]:
        """The layout of some of the sequences, and the rows of their chunks in this layout."""
        chunks = np.flatnonzero((self._at >= first) & (self._at < last))
        running = np.clip(np.asarray(self.ranks.running) - first, 0, last - first)
        part = copy(self)
        part.ranks = Ranks(last - first, tuple(running[running > 0].tolist()))
        part._at, part._first, part._steps = self._at[chunks] - first, self._first[chunks], self._steps[chunks]
        part._padded, part._rows = self._padded[chunks], self._rows[chunks]
        part._sequences = self._sequences[first:last]
        return part, self._index((chunks[:, None] * self.N + np.arange(self.N)).reshape(-1))

    def _index(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(self._device)

    def _chunks(self, first: int, last: int) -> slice:
        """The chunks of some ranks."""
        running = self.ranks.running
        start = sum(running[:first])
        return slice(start, start + sum(running[first:last]))

    def gather(
        self, x: torch.Tensor, first: int, last: int, dtype: torch.dtype, padding: float = 0.0, more: int = 0
    ) -> torch.Tensor:
        """The chunks of some ranks: ``(T, N, ...)`` → ``(rows, L, ...)`` in ``dtype``, a new tensor.

        With ``more``, the last axis has that many more columns, which are not written.
        """
        chunks = self._chunks(first, last)
        rows, padded = self._rows[chunks].reshape(-1), self._steps[chunks] < self.L
        whole = x.new_empty((len(rows), *_longer(x.shape[2:], more)), dtype=dtype)
        y, x = whole[..., :-more] if more else whole, x.flatten(0, 1)
        if x.dtype is dtype:
            torch.index_select(x, 0, self._index(rows), out=y)
        else:
            y.copy_(x.index_select(0, self._index(rows)))
        if padded.any():
            y.index_fill_(0, self._index(np.flatnonzero(self._padded[chunks])), padding)
        return whole.unflatten(0, (len(rows) // self.L, self.L))

    def scatter(self, y: torch.Tensor, x: torch.Tensor, first: int, last: int) -> None:
        """Write the chunks of some ranks, ``(rows, L, ...)``, to their positions in ``(T, N, ...)``."""
        chunks = self._chunks(first, last)
        starts, steps = self._first[chunks], self._steps[chunks]
        if x.device.type == "cpu" and y[: self.N].numel() >= _LARGE:
            by_chunk = y.unflatten(0, (len(steps), self.N)).transpose(1, 2).unbind(0)
            for chunk, start, count in zip(by_chunk, starts.tolist(), steps.tolist(), strict=True):
                x[start : start + count].copy_(chunk[:count])
            return
        y, rows = y.flatten(0, 1), self._rows[chunks].reshape(-1)
        if (steps < self.L).any():
            filled = np.flatnonzero(~self._padded[chunks])
            y, rows = y.index_select(0, self._index(filled)), rows[filled]
        x.flatten(0, 1).index_copy_(0, self._index(rows), y.to(x.dtype))

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """The values of these sequences, the longest first, from values of all sequences."""
        return x.index_select(0, self._sequences)

    def place(self, y: torch.Tensor, x: torch.Tensor) -> None:
        """Write the values of these sequences to their positions in the values of all sequences."""
        x.index_copy_(0, self._sequences, y)


ChunkLayout = DenseChunkLayout | PackedChunkLayout
