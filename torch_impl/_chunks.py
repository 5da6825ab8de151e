"""How tokens lie in chunks: the one change of layout before, and after, the chunkwise mLSTM.

A *lane* is a sequence; its chunks have ranks 0, 1, …. Chunks are laid out rank by rank, and inside a rank lane by lane,
the lanes with the most chunks first. So the lanes that still run at a rank are a prefix, dense batches and packed ones
are scanned alike, and no idle step is computed. A row is a chunk of one head; G = chunks·N rows.

Steps past a sequence's end (its last chunk may be partly empty) hold q = k = v = 0, i = −∞ and f = +∞: they write
nothing and forget nothing.
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Ranks:
    """Which lanes run at which rank, for scans over the states between chunks.

    Attributes:
        lanes: B, idle ones included.
        running: for every rank, how many lanes have a chunk of that rank (never rising).
    """

    lanes: int
    running: tuple[int, ...]

    @property
    def chunks(self) -> int:
        return sum(self.running)

    @property
    def uniform(self) -> bool:
        """Whether every lane has a chunk of every rank."""
        return all(count == self.lanes for count in self.running)

    def lane_and_rank(self) -> tuple[np.ndarray, np.ndarray]:
        """The lane and the rank of every chunk."""
        lanes = [np.arange(count) for count in self.running]
        return np.concatenate(lanes) if lanes else np.arange(0), np.repeat(np.arange(len(self.running)), self.running)

    def forward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where a scan that writes ``[initial states of all lanes | end state of every chunk]`` finds the state at the
        start of every chunk, and the final state of every lane."""
        starts, last, offset = [], np.arange(self.lanes), 0
        for count in self.running:
            starts.append(last[:count].copy())
            last[:count] = self.lanes + offset + np.arange(count)
            offset += count
        return np.concatenate(starts) if starts else np.arange(0), last

    def backward_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where a scan that writes ``[gradient at the start of every chunk | final cotangents of all lanes]`` finds the
        gradient at the end of every chunk, and that of every lane's initial state."""
        ends, following, offset = [], self.chunks + np.arange(self.lanes), self.chunks
        for count in reversed(self.running):
            offset -= count
            ends.append(following[:count].copy())
            following[:count] = offset + np.arange(count)
        return np.concatenate(ends[::-1]) if ends else np.arange(0), following


class DenseChunks:
    """Chunks of ``(B, S, N, ·)``."""

    def __init__(self, B: int, S: int, N: int, L: int):
        self.B, self.S, self.N, self.L = B, S, N, L
        count = -(-S // L)
        self.ranks = Ranks(B, (B,) * count)

    def gather(self, x: torch.Tensor, dtype: torch.dtype, padding: float = 0.0) -> torch.Tensor:
        """``(B, S, N, ...)`` → ``(G, L, ...)`` in ``dtype``, a fresh tensor."""
        full, rest = divmod(self.S, self.L)
        y = x.new_empty((len(self.ranks.running), self.B, self.N, self.L, *x.shape[3:]), dtype=dtype)
        if full:
            whole = x[:, : full * self.L].unflatten(1, (full, self.L))
            y[:full].copy_(whole.movedim(0, 1).movedim(3, 2))
        if rest:
            y[full, :, :, :rest].copy_(x[:, full * self.L :].transpose(1, 2))
            y[full, :, :, rest:] = padding
        return y.flatten(0, 2)

    def scatter(self, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``(G, L, ...)`` → ``(B, S, N, ...)`` in ``dtype``, a fresh tensor."""
        full, rest = divmod(self.S, self.L)
        y = y.unflatten(0, (len(self.ranks.running), self.B, self.N))
        x = y.new_empty((self.B, self.S, self.N, *y.shape[4:]), dtype=dtype)
        if full:
            whole = x[:, : full * self.L].unflatten(1, (full, self.L))
            whole.copy_(y[:full].movedim(2, 3).movedim(0, 1))
        if rest:
            x[:, full * self.L :].copy_(y[full, :, :, :rest].transpose(1, 2))
        return x

    def lanes_first(self, x: torch.Tensor) -> torch.Tensor:
        """Per-sequence values in lane order."""
        return x

    sequences_first = lanes_first


class PackedChunks:
    """Chunks of ``(T, N, ·)`` with sequences that start and end at ``cu_seqlens``."""

    def __init__(self, cu_seqlens: np.ndarray, N: int, L: int, device: torch.device):
        self.N, self.L = N, L
        starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
        counts = -(-(ends - starts) // L)
        order = np.argsort(-counts, kind="stable")
        running = tuple(int((counts > rank).sum()) for rank in range(int(counts.max(initial=0))))
        self.ranks = Ranks(len(counts), running)

        lanes = np.concatenate([order[:count] for count in running]) if running else np.arange(0)
        first = starts[lanes] + L * np.repeat(np.arange(len(running)), running)
        tokens = first[:, None, None] + np.arange(L)
        heads = np.arange(N)[:, None]
        # (chunks, N, L): the row of a (T·N, ·) tensor that each step of each chunk of each head takes.
        padded = np.broadcast_to(tokens >= ends[lanes][:, None, None], (len(lanes), N, L))
        rows = np.where(padded, 0, tokens * N + heads)
        slots = np.empty(int(cu_seqlens[-1]) * N, dtype=np.int64)
        slots[rows[~padded]] = np.flatnonzero(~padded)

        def index(x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(device)

        self._rows, self._slots = index(rows.reshape(-1)), index(slots)
        self._padding = index(np.flatnonzero(padded)) if padded.any() else None
        self._order, self._inverse = index(order), index(np.argsort(order))

    def gather(self, x: torch.Tensor, dtype: torch.dtype, padding: float = 0.0) -> torch.Tensor:
        """``(T, N, ...)`` → ``(G, L, ...)`` in ``dtype``, a fresh tensor."""
        y = x.flatten(0, 1).index_select(0, self._rows).to(dtype)
        if self._padding is not None:
            y.index_fill_(0, self._padding, padding)
        return y.unflatten(0, (self.ranks.chunks * self.N, self.L))

    def scatter(self, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``(G, L, ...)`` → ``(T, N, ...)`` in ``dtype``, a fresh tensor."""
        x = y.flatten(0, 1).index_select(0, self._slots).to(dtype)
        return x.unflatten(0, (len(self._slots) // self.N, self.N))

    def lanes_first(self, x: torch.Tensor) -> torch.Tensor:
        """Per-sequence values in lane order."""
        return x.index_select(0, self._order)

    def sequences_first(self, x: torch.Tensor) -> torch.Tensor:
        """Per-lane values in the order of the sequences."""
        return x.index_select(0, self._inverse)


Chunks = DenseChunks | PackedChunks
