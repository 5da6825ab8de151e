"""The layout in which a recurrence is computed step by step: rows in time order.

Layout: ``(N, R, ·)``, heads first. The R rows are ordered by step and, within a step, by sequence: those that are still
running, the longest first. Every step is therefore a slice, and no idle step is computed. Packed sequences are sorted
by length; a dense batch is the special case of equal lengths.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_impl._operators import packing
from torch_impl._products import packed


class _StepLayout:
    """The common part of both layouts.

    Attributes:
        B, N: number of sequences and of heads.
        running: number of rows of every step.
        shape: the sizes before the heads of an array in the order of the arguments.
    """

    B: int
    N: int
    running: tuple[int, ...]
    shape: tuple[int, ...]

    def scatter(self, rows: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """``(N, R, H)`` → the order of the arguments, summed over the heads that read one head; a new tensor."""
        if heads != self.N:
            rows = rows.unflatten(0, (heads, self.N // heads)).sum(1)
        x = rows.new_empty((*self.shape, heads, rows.shape[-1]), dtype=dtype)
        self.scatter_into(x, rows)
        return x

    def scatter_into(self, x: Tensor, rows: Tensor) -> None:
        raise NotImplementedError


class DenseStepLayout(_StepLayout):
    """Rows of ``S`` steps of ``(B, ·, ·, H)``, from step ``first`` on."""

    def __init__(self, B: int, S: int, N: int, first: int = 0):
        self.B, self.S, self.N = B, S, N
        self.first = first
        self.running, self.shape = (B,) * S, (B, S)

    def pieces(self, rows: int) -> Iterator["DenseStepLayout"]:
        """Layouts of consecutive steps, each of at most ``rows`` rows or of one step."""
        count = max(rows // max(self.B, 1), 1)
        for first in range(0, self.S, count):
            yield DenseStepLayout(self.B, min(count, self.S - first), self.N, self.first + first)

    def gather(self, x: Tensor, rows: Tensor) -> None:
        """Write the steps of ``(B, ·, Nx, H)`` to ``rows`` ``(N, R, H)``, each head to all heads that read it."""
        heads = x.shape[2]
        by_step = x.narrow(1, self.first, self.S).permute(2, 1, 0, 3).unsqueeze(1)
        rows.unflatten(1, (self.S, self.B)).unflatten(0, (heads, self.N // max(heads, 1))).copy_(by_step)

    def scatter_into(self, x: Tensor, rows: Tensor) -> None:
        """Write ``rows`` ``(N, R, H)`` to their places in ``(B, ·, N, H)``."""
        by_step = rows.unflatten(1, (self.S, self.B))
        x.narrow(1, self.first, self.S).copy_(by_step.permute(2, 1, 0, 3))

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


class PackedStepLayout(_StepLayout):
    """Rows of ``(T, ·, H)``, whose sequences have these ``starts`` and ``lengths``."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, N: int, device: torch.device):
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
        self.shape, self._tokens = (len(tokens),), index(tokens)
        self._before, self._last = index(np.concatenate([np.arange(0), *before])), index(last)
        self._order, self._inverse = index(order), index(np.argsort(order))
        self._starts, self._lengths, self._device = starts[order], lengths[order], device

    def pieces(self, rows: int) -> Iterator["PackedStepLayout"]:
        """Layouts of consecutive steps, each of at most ``rows`` rows or of one step, for sequences that still run."""
        first, steps = 0, len(self.running)
        while first < steps:
            running, count = self.running[first], 1
            total = running
            while first + count < steps and total + self.running[first + count] <= rows:
                total += self.running[first + count]
                count += 1
            lengths = np.minimum(self._lengths[:running] - first, count)
            yield PackedStepLayout(self._starts[:running] + first, lengths, self.N, self._device)
            first += count

    def scatter_into(self, x: Tensor, rows: Tensor) -> None:
        """Write ``rows`` ``(N, R, H)`` to their places in ``(T, N, H)``."""
        x.index_copy_(0, self._tokens, rows.transpose(0, 1).to(x.dtype))

    def gather(self, x: Tensor, rows: Tensor) -> None:
        """Write ``(T, Nx, H)`` to ``rows`` ``(N, R, H)``, each head to all heads that read it."""
        heads = x.shape[1]
        by_step = x.index_select(0, self._tokens).transpose(0, 1)[:, None]
        rows.unflatten(0, (heads, self.N // max(heads, 1))).copy_(by_step)

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
    bounds = packing(function, argument, x, cu_seqlens)
    return PackedStepLayout(bounds[:-1], np.diff(bounds), N, x.device)


AddProduct = Callable[[Tensor, Tensor], Tensor]


def product_by_step(steps: StepLayout, weight: Tensor, *, carried: bool = False) -> AddProduct:
    """``(h, x)`` → ``x + h @ weight`` head by head for the rows of a step; x itself, overwritten, or a new tensor.

    Args:
        carried: whether x is carried from step to step, and may be far larger than the terms of the product. Then these
            are summed first: added to x one by one, each would be rounded to x's last digit.
    """
    if isinstance(steps, DenseStepLayout):
        add = packed(weight, steps.B, len(steps.running))
        if add is not None:
            return add

    def in_place(h: Tensor, x: Tensor) -> Tensor:
        in_one = x.is_contiguous() and not carried
        return x.baddbmm_(h, weight) if in_one else x.add_(torch.bmm(h, weight))

    return in_place


_PIECE = 1 << 17
"""Number of elements of an array's rows in a piece."""

_STEPS = 1024
"""Number of steps of which views exist at once: a view takes as much memory as a hundred elements."""


ViewsOfSteps = dict[tuple[int, ...], list[tuple[Tensor, ...]]]


class Piece(NamedTuple):
    """Consecutive steps and the arrays in which they are computed.

    Attributes:
        rows: to be filled with inputs, each ``(N, R, ·)``.
        states: each ``(N, B + R, H)``, initial ones first.
        views: for `by_step`, if other pieces use the same arrays.
    """

    steps: StepLayout
    rows: list[Tensor]
    states: list[Tensor]
    views: ViewsOfSteps | None


def in_pieces(steps: StepLayout, whole: bool, widths: Sequence[int], last: Sequence[Tensor]) -> Iterator[Piece]:
    """All steps in order, in one piece or in several.

    The pieces use the same memory one after the other: it stays in a cache, and few pages are written for the first
    time, which costs more than a step's arithmetic on them. Final states go to ``last``, where the next piece begins.

    Args:
        whole: all steps are one piece, whose arrays are the caller's to keep.
        widths: the last sizes of the rows.
        last: the initial states ``(N, B, H)`` in the order of the rows, overwritten.
    """
    N, B, H = last[0].shape
    pieces = [steps] if whole else [*steps.pieces(min(_PIECE // max(N * H, 1), _STEPS))]
    # PyTorch's operators divide contiguous arrays into other vectors, whose ends are rounded otherwise. With a row to
    # spare, the rows of a single step are not contiguous either, and no bit depends on the number of steps in a piece.
    R = max((sum(piece.running) for piece in pieces), default=0) + (len(pieces) > 1)
    rows = [last[0].new_empty((N, R, width)) for width in widths]
    states = [last[0].new_empty((N, B + R, H)) for _ in last]
    views = None if whole else {}
    for piece in pieces:
        B, R = piece.B, sum(piece.running)
        of_piece = [state[:, : B + R] for state in states]
        for state, before in zip(of_piece, last, strict=True):
            state[:, :B] = before[:, :B]
        yield Piece(piece, [x[:, :R] for x in rows], of_piece, views)
        for state, after in zip(of_piece, last, strict=True):
            after[:, :B] = piece.last(state)


def by_step(
    running: tuple[int, ...], *columns: Tensor, backwards: bool = False, views: ViewsOfSteps | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """The rows of every step, as views of each of the arrays ``(N, R, ·)``, from the first step or from the last.

    Args:
        views: keeps those of the last call; where the next one is for the same arrays and numbers of rows, they are
            its views too. Making them takes a fifteenth of a small step's time.
    """
    if views is not None:
        if running not in views:
            views.clear()
            views[running] = [*by_step(running, *columns)]
        return iter(views[running])
    if len(running) <= _STEPS:
        return _in_order(zip(*(x.split_with_sizes(running, 1) for x in columns), strict=True), backwards)
    spans = [running[first : first + _STEPS] for first in range(0, len(running), _STEPS)]
    rows = [sum(span) for span in spans]
    parts = _in_order(zip(spans, *(x.split_with_sizes(rows, 1) for x in columns), strict=True), backwards)
    return itertools.chain.from_iterable(by_step(span, *part, backwards=backwards) for span, *part in parts)


def _in_order(x: Iterator[tuple], backwards: bool) -> Iterator[tuple]:
    return reversed([*x]) if backwards else x
