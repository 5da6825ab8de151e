"""Rows of packed tokens: step n of a run gets the same rows whatever came before, so that a resumed run needs no more.

Each epoch is one stream: all documents in an order of its own, one after the other. Streams follow each other without
end, and a row is the next ``T`` tokens. A document that begins in a row is a sequence of its own (`cu_seqlens`); one
that a row cuts continues in the next row, as a sequence that begins in its middle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from examples.language_model.corpus import CorpusError, Documents


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Packed rows of equal length.

    Attributes:
        tokens, targets: ``(R, T)`` int32; a target is the token after the token.
        cu_seqlens: ``(R, D+1)`` int32, the packing of each row; it ends with empty sequences where a row has fewer
            than D, so that every row has the same shape.
    """

    tokens: np.ndarray
    targets: np.ndarray
    cu_seqlens: np.ndarray


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Where rows are cut from.

    Attributes:
        documents: the text.
        row_tokens: T.
        seed: of the order of documents; None keeps the order in which they are.
    """

    documents: Documents
    row_tokens: int
    seed: int | None

    @property
    def slots(self) -> int:
        """D: the most sequences that a row can hold, whatever the order of documents."""
        # A row may reach into later streams, which hold the shortest documents again.
        streams = self.row_tokens // self._length + 2
        shortest = np.sort(np.repeat(self.documents.lengths, streams))
        # Two more are cut off at the ends of the row.
        return min(int(np.searchsorted(np.cumsum(shortest), self.row_tokens, side="right")) + 2, self.row_tokens)

    @property
    def whole_rows(self) -> int:
        """How many rows the documents fill once."""
        return self._length // self.row_tokens

    def rows(self, first: int, count: int) -> Rows:
        """Rows ``first`` to ``first + count - 1`` of the endless stream."""
        made = [self._row((first + index) * self.row_tokens) for index in range(count)]
        tokens, targets, packings = zip(*made, strict=True)
        return Rows(tokens=np.stack(tokens), targets=np.stack(targets), cu_seqlens=np.stack(packings))

    @property
    def _length(self) -> int:
        return int(self.documents.starts[-1])

    def _row(self, at: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row: its tokens, its targets and its packing."""
        T = self.row_tokens
        # One token more than the row: the last target.
        pieces = list(self._pieces(at, T + 1))
        tokens = np.concatenate(pieces)
        packing = np.full(self.slots + 1, T, np.int32)
        packing[: len(pieces)] = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
        return tokens[:T], tokens[1:], packing

    def _pieces(self, at: int, count: int) -> Iterator[np.ndarray]:
        """The parts of documents that make up ``count`` tokens from a place in the endless stream on."""
        documents = self.documents
        epoch, offset = divmod(at, self._length)
        while count:
            order = self._order(epoch)
            ends = np.cumsum(documents.lengths[order])
            for place in range(int(np.searchsorted(ends, offset, side="right")), len(order)):
                end = int(documents.starts[order[place] + 1])
                begin = end - int(ends[place] - offset)
                piece = documents.tokens[begin : min(end, begin + count)]
                yield piece
                offset, count = offset + len(piece), count - len(piece)
                if not count:
                    return
            epoch, offset = epoch + 1, 0

    def _order(self, epoch: int) -> np.ndarray:
        documents = len(self.documents.lengths)
        if self.seed is None:
            return np.arange(documents)
        return np.random.default_rng((self.seed, epoch)).permutation(documents)


def held_out_rows(source: RowSource, most: int) -> Rows:
    """The rows of a validation: evenly spaced in the held-out text, at most ``most``, and none twice.

    Raises:
        CorpusError: the text does not fill one row.
    """
    count = min(most, source.whole_rows)
    if count == 0:
        raise CorpusError(
            f"`row_tokens` is {source.row_tokens}; the held-out text has {len(source.documents.tokens)} tokens, "
            "which do not fill a row"
        )
    return joined_rows([source.rows(index * source.whole_rows // count, 1) for index in range(count)])


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    return Rows(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Rows)})
