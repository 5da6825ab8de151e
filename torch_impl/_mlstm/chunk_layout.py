"""The layout of tokens in chunks: the only change of layout before, and after, the chunkwise mLSTM.

The chunks of a sequence have ranks 0, 1, …. Chunks are ordered by rank and, within a rank, by sequence, with the
sequences that have the most chunks first. The sequences that have a chunk of a given rank are therefore a prefix; dense
batches and packed ones are scanned in the same way, and no idle step is computed. A row is one chunk of one head; there
are ``rows = chunks·N``.

Steps after the end of a sequence (its last chunk may be partly empty) hold q = k = v = 0, i = −∞ and f = +∞: they write
nothing and forget nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch


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
        return all(count == self.sequences for count in self.running)

    def between(self, first: int, last: int) -> "Ranks":
        """These ranks only, with the sequences that have chunks in them."""
        running = self.running[first:last]
        return Ranks(running[0] if running else 0, running)

    def sequence_and_rank(self) -> tuple[np.ndarray, np.ndarray]:
        """The sequence and the rank of every chunk."""
        sequences = [np.arange(count) for count in self.running]
        return np.concatenate(sequences) if sequences else np.arange(0), np.repeat(
            np.arange(len(self.running)), self.running
        )

    def forward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows at which a scan that writes ``[initial states of all sequences | end state of every chunk]`` finds the
        state at the start of every chunk, and the final state of every sequence."""
        starts, last, offset = [], np.arange(self.sequences), 0
        for count in self.running:
            starts.append(last[:count].copy())
            last[:count] = self.sequences + offset + np.arange(count)
            offset += count
        return np.concatenate(starts) if starts else np.arange(0), last

    def backward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows at which a scan that writes ``[gradient at the start of every chunk | final cotangents of sequences]``
        finds the gradient at the end of every chunk, and that of every sequence's initial state."""
        ends, following, offset = [], self.chunks + np.arange(self.sequences), self.chunks
        for count in reversed(self.running):
            offset -= count
            ends.append(following[:count].copy())
            following[:count] = offset + np.arange(count)
        return np.concatenate(ends[::-1]) if ends else np.arange(0), following


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

    def longest_first(self, x: torch.Tensor) -> torch.Tensor:
        """Per-sequence values with the longest sequence first."""
        return x

    original_order = longest_first


class PackedChunkLayout:
    """Chunks of ``(T, N, ·)``, whose sequences start and end at ``cu_seqlens``."""

    def __init__(self, cu_seqlens: np.ndarray, N: int, L: int, device: torch.device):
        self.N, self.L = N, L
        starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
        counts = -(-(ends - starts) // L)
        order = np.argsort(-counts, kind="stable")
        running = tuple(int((counts > rank).sum()) for rank in range(int(counts.max(initial=0))))
        self.ranks = Ranks(len(counts), running)
        self._offsets = np.cumsum([0, *running]) * N * L

        sequences = np.concatenate([order[:count] for count in running]) if running else np.arange(0)
        first = starts[sequences] + L * np.repeat(np.arange(len(running)), running)
        tokens = first[:, None, None] + np.arange(L)
        heads = np.arange(N)[:, None]
        # (chunks, N, L): the row of a (T·N, ·) tensor that each step of each chunk of each head reads.
        padded = np.broadcast_to(tokens >= ends[sequences][:, None, None], (len(sequences), N, L)).reshape(-1)
        rows = np.where(padded, 0, (tokens * N + heads).reshape(-1))

        def index(x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(device)

        self._rows, self._device = rows, device
        self._padding, self._filled = np.flatnonzero(padded), np.flatnonzero(~padded)
        self._order, self._inverse = index(order), index(np.argsort(order))

    def _index(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(self._device)

    def _between(self, places: np.ndarray, first: int, last: int) -> np.ndarray:
        """From positions in all chunks, select those of some ranks, counted from the first of these ranks."""
        start, end = self._offsets[first], self._offsets[last]
        return places[slice(*np.searchsorted(places, (start, end)))] - start

    def gather(
        self, x: torch.Tensor, first: int, last: int, dtype: torch.dtype, padding: float = 0.0, more: int = 0
    ) -> torch.Tensor:
        """The chunks of some ranks: ``(T, N, ...)`` → ``(rows, L, ...)`` in ``dtype``, a new tensor.

        With ``more``, the last axis has that many more columns, whose values are meaningless.
        """
        if more:
            x = torch.nn.functional.pad(x, (0, more))
        rows = self._rows[self._offsets[first] : self._offsets[last]]
        y = x.flatten(0, 1).index_select(0, self._index(rows)).to(dtype)
        if len(padded := self._between(self._padding, first, last)):
            y.index_fill_(0, self._index(padded), padding)
        return y.unflatten(0, (len(rows) // self.L, self.L))

    def scatter(self, y: torch.Tensor, x: torch.Tensor, first: int, last: int) -> None:
        """Write the chunks of some ranks, ``(rows, L, ...)``, to their positions in ``(T, N, ...)``."""
        filled = self._between(self._filled, first, last)
        rows = self._rows[self._offsets[first] : self._offsets[last]]
        y = y.flatten(0, 1)
        if len(filled) < len(rows):
            y, rows = y.index_select(0, self._index(filled)), rows[filled]
        x.flatten(0, 1).index_copy_(0, self._index(rows), y.to(x.dtype))

    def longest_first(self, x: torch.Tensor) -> torch.Tensor:
        """Per-sequence values with the longest sequence first."""
        return x.index_select(0, self._order)

    def original_order(self, x: torch.Tensor) -> torch.Tensor:
        """Undo `longest_first`."""
        return x.index_select(0, self._inverse)


ChunkLayout = DenseChunkLayout | PackedChunkLayout
