"""The layout in which a recurrence is computed step by step: rows in time order.

Layout: ``(N, R, ·)``, heads first. The R rows are ordered by step and, within a step, by sequence: those that are still
running, the longest first. Every step is therefore a slice, and no idle step is computed. Packed sequences are sorted
by length; a dense batch is the special case of equal lengths.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from torch_impl._operators import packing


class DenseStepLayout:
    """Rows of ``(B, S, ·, H)``."""

    def __init__(self, B: int, S: int, N: int):
        self.B, self.S, self.N = B, S, N
        self.running = (B,) * S

    def gather(self, x: Tensor, rows: Tensor) -> None:
        """Write ``(B, S, Nx, H)`` to ``rows`` ``(N, R, H)``, each head to all heads that read it."""
        heads = x.shape[2]
        by_step = x.permute(2, 1, 0, 3).unsqueeze(1)
        rows.view(heads, self.N // max(heads, 1), self.S, self.B, x.shape[-1]).copy_(by_step)

    def scatter(self, rows: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """``(N, R, H)`` → ``(B, S, heads, H)``, summed over the heads that read one head; a new tensor."""
        rows = rows.view(self.N, self.S, self.B, rows.shape[-1])
        if heads != self.N:
            rows = rows.unflatten(0, (heads, self.N // heads)).sum(1)
        x = rows.new_empty((self.B, self.S, heads, rows.shape[-1]), dtype=dtype)
        return x.copy_(rows.permute(2, 1, 0, 3))

    def longest_first(self, state: Tensor) -> Tensor:
        """``(B, N, H)`` → ``(N, B, H)`` in the order of the rows."""
        return state.transpose(0, 1)

    def original_order(self, state: Tensor) -> Tensor:
        """``(N, B, H)`` → ``(B, N, H)``, a new tensor."""
        return state.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def before(self, states: Tensor) -> Tensor:
        """From the states ``(N, B + R, H)``, initial ones first, select the state before every row."""
        return states[:, : self.B * self.S]

    def last(self, states: Tensor) -> Tensor:
        """From the states ``(N, B + R, H)``, select the final state of every sequence."""
        return states[:, self.B * self.S :]


class PackedStepLayout:
    """Rows of ``(T, ·, H)``, whose sequences start and end at ``cu_seqlens``."""

    def __init__(self, cu_seqlens: np.ndarray, N: int, device: torch.device):
        starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
        self.B, self.N = len(lengths), N
        order = np.argsort(-lengths, kind="stable")
        self.running = tuple(int(c) for c in self.B - np.cumsum(np.bincount(lengths, minlength=1)) if c)
        tokens, before, last, row = [], [], np.arange(self.B), self.B
        for step, count in enumerate(self.running):
            tokens.append(starts[order[:count]] + step)
            before.append(last[:count].copy())
            last[:count] = row + np.arange(count)
            row += count

        def index(x: np.ndarray) -> Tensor:
            return torch.from_numpy(x).to(device)

        tokens = np.concatenate([np.arange(0), *tokens])
        self._tokens, self._rows = index(tokens), index(np.argsort(tokens))
        self._before, self._last = index(np.concatenate([np.arange(0), *before])), index(last)
        self._order, self._inverse = index(order), index(np.argsort(order))

    def gather(self, x: Tensor, rows: Tensor) -> None:
        """Write ``(T, Nx, H)`` to ``rows`` ``(N, R, H)``, each head to all heads that read it."""
        heads = x.shape[1]
        by_step = x.index_select(0, self._tokens).transpose(0, 1)[:, None]
        rows.unflatten(0, (heads, self.N // max(heads, 1))).copy_(by_step)

    def scatter(self, rows: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """``(N, R, H)`` → ``(T, heads, H)``, summed over the heads that read one head; a new tensor."""
        if heads != self.N:
            rows = rows.unflatten(0, (heads, self.N // heads)).sum(1)
        return rows.transpose(0, 1).to(dtype).index_select(0, self._rows)

    def longest_first(self, state: Tensor) -> Tensor:
        """``(B, N, H)`` → ``(N, B, H)`` in the order of the rows."""
        return state.transpose(0, 1).index_select(1, self._order)

    def original_order(self, state: Tensor) -> Tensor:
        """``(N, B, H)`` → ``(B, N, H)``, a new tensor."""
        return state.transpose(0, 1).index_select(0, self._inverse)

    def before(self, states: Tensor) -> Tensor:
        """From the states ``(N, B + R, H)``, initial ones first, select the state before every row."""
        return states.index_select(1, self._before)

    def last(self, states: Tensor) -> Tensor:
        """From the states ``(N, B + R, H)``, select the final state of every sequence."""
        return states.index_select(1, self._last)


StepLayout = DenseStepLayout | PackedStepLayout


def step_layout(function: str, argument: str, x: Tensor, N: int, cu_seqlens: Tensor | None) -> StepLayout:
    """The layout for inputs ``(B, S, ·, H)``, or ``(T, ·, H)`` with a packing; errors name function and argument."""
    if cu_seqlens is None:
        return DenseStepLayout(x.shape[0], x.shape[1], N)
    return PackedStepLayout(packing(function, argument, x, cu_seqlens), N, x.device)


_STEPS = 1024
"""Number of steps of which views exist at once: a view takes as much memory as a hundred elements."""


def by_step(running: Sequence[int], *columns: Tensor, backwards: bool = False) -> Iterator[tuple[Tensor, ...]]:
    """The rows of every step, as views of each of the arrays ``(N, R, ·)``, from the first step or from the last."""
    if len(running) <= _STEPS:
        return _in_order(zip(*(x.split_with_sizes(running, 1) for x in columns), strict=True), backwards)
    spans = [running[first : first + _STEPS] for first in range(0, len(running), _STEPS)]
    rows = [sum(span) for span in spans]
    parts = _in_order(zip(spans, *(x.split_with_sizes(rows, 1) for x in columns), strict=True), backwards)
    return itertools.chain.from_iterable(by_step(span, *part, backwards=backwards) for span, *part in parts)


def _in_order(x: Iterator[tuple], backwards: bool) -> Iterator[tuple]:
    return reversed([*x]) if backwards else x
