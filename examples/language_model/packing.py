"""Rows of packed tokens. The rows of step n depend only on the seed and on n, so a resumed run needs no other state.

Each epoch is one stream: all documents one after the other, in a new order. The stream is cut into rows of T tokens,
which are taken in random order, because neighbouring rows may belong to the same document. The remainder of a stream,
at most T tokens, is skipped in that epoch. Each document in a row is a separate sequence (`cu_seqlens`). If the end of
a row cuts a document, the rest is a sequence of its own in another row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from examples.language_model.corpus import BOUNDARY, CorpusError, Documents


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Packed rows of equal length.

    Attributes:
        tokens, targets: ``(R, T)`` int32; a target is the next token.
        cu_seqlens: ``(R, D+1)`` int32, the packing of each row; rows with fewer than D sequences end with empty ones,
            so that every row has the same shape.
    """

    tokens: np.ndarray
    targets: np.ndarray
    cu_seqlens: np.ndarray


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """The source of the rows.

    Attributes:
        documents: the text.
        row_tokens: T.
        seed: the seed of the orders of documents and rows; None keeps the given order.
    """

    documents: Documents
    row_tokens: int
    seed: int | None

    @property
    def slots(self) -> int:
        """D: the largest number of sequences in a row, for any order of documents."""
        shortest = np.cumsum(np.sort(self.documents.lengths))
        # Two more are cut off at the ends of the row.
        return min(int(np.searchsorted(shortest, self.row_tokens, side="right")) + 2, self.row_tokens)

    @property
    def whole_rows(self) -> int:
        """Number of rows in an epoch; at least one token, the last target, follows the last row."""
        return (int(self.documents.starts[-1]) - 1) // self.row_tokens

    def rows(self, first: int, count: int) -> Rows:
        """Rows ``first`` to ``first + count - 1`` of all epochs, one after the other.

        Raises:
            CorpusError: the text does not fill one row.
        """
        if self.whole_rows == 0:
            raise CorpusError(
                f"`row_tokens` is {self.row_tokens}; one part of the text has {len(self.documents.tokens)} tokens, "
                "which do not fill a row and its last target"
            )
        made = [self._row(*divmod(first + index, self.whole_rows)) for index in range(count)]
        tokens, targets, packings = zip(*made, strict=True)
        return Rows(tokens=np.stack(tokens), targets=np.stack(targets), cu_seqlens=np.stack(packings))

    def _row(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row: its tokens, its targets and its packing."""
        T = self.row_tokens
        documents, rows = self._orders(epoch)
        # One token more than the row: the last target.
        pieces = list(self._pieces(documents, int(rows[index]) * T, T + 1))
        tokens = np.concatenate(pieces)
        packing = np.full(self.slots + 1, T, np.int32)
        packing[: len(pieces)] = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
        return tokens[:T], tokens[1:], packing

    def _pieces(self, order: np.ndarray, at: int, count: int) -> Iterator[np.ndarray]:
        """The parts of documents that make up ``count`` tokens of a stream from a given position."""
        documents = self.documents
        ends = np.cumsum(documents.lengths[order])
        place = int(np.searchsorted(ends, at, side="right"))
        while count:
            end = int(documents.starts[order[place] + 1])
            begin = end - int(ends[place] - at)
            piece = documents.tokens[begin : min(end, begin + count)]
            yield piece
            at, count, place = at + len(piece), count - len(piece), place + 1

    def _orders(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of documents in the stream of an epoch, and the order of its rows."""
        documents, rows = len(self.documents.lengths), self.whole_rows
        if self.seed is None:
            return np.arange(documents), np.arange(rows)
        rng = np.random.default_rng((self.seed, epoch))
        return rng.permutation(documents), rng.permutation(rows)


def held_out_rows(source: RowSource, most: int) -> Rows:
    """The rows of a validation: evenly spaced in the held-out text, at most ``most``, without repetition.

    Raises:
        CorpusError: the text does not fill one row.
    """
    count = max(1, min(most, source.whole_rows))
    return joined_rows([source.rows(index * source.whole_rows // count, 1) for index in range(count)])


def with_hidden_tokens(rows: Rows, share: float, seed: int, step: int) -> Rows:
    """Rows of a step, of whose tokens a share is replaced by the boundary; the same whatever devices take them."""
    if share == 0:
        return rows
    hidden = np.random.default_rng((seed, 2, step)).random(rows.tokens.shape) < share
    return replace(rows, tokens=np.where(hidden, np.int32(BOUNDARY), rows.tokens))


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    return Rows(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Rows)})
