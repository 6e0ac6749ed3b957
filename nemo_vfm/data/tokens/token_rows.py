"""Reads the tokens, labels and documents of a row by its number, for both ways of packing a stream.

Shape letters: B rows, S tokens of a row.
"""

import itertools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.data.tokens.memo import Memo
from nemo_vfm.data.tokens.row_filling import fill
from nemo_vfm.data.tokens.shuffle import shuffled
from nemo_vfm.data.tokens.spans import Spans
from nemo_vfm.data.tokens.token_stream import Pieces, TokenStream

WINDOW = 1024  #: rows whose documents are packed together
SPAN = 32  #: rows of neighbouring documents in a window: a span's two ends cut a document each
_PLANS = 4  # windows that are remembered; one has some 10,000 documents, 250 KB

Numbers = NDArray[np.int64]
Documents = tuple[tuple[int, ...], ...]


class Rows(Protocol):
    """Rows of equal length, each by its number."""

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """Fill the arrays; the lengths of each row's documents, or nothing where all that is in a row is seen."""
        ...


class StreamRows:
    """Documents one after another, cut into rows wherever a row ends; a document sees those before it in its row.

    Args:
        stream: of documents.
        size: tokens of a row.
        seed, shuffle: see `Spans`.
    """

    def __init__(self, stream: TokenStream, size: int, *, seed: int, shuffle: bool = True) -> None:
        self._stream, self._settings = stream, (size, seed, shuffle)
        self._spans = Spans(stream.num_tokens, size, seed=seed, shuffle=shuffle)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """See `Rows.read`; the last label of a row is the first token of the stream's next row."""
        self._stream.gather_with_next(self._spans.starts(numbers), tokens_BS, labels_BS)
        return ()


class DocumentRows:
    """Documents side by side that do not see each other, each whole in a row as far as it can be.

    A window is as many spans of the shuffled stream as hold the tokens of `WINDOW` rows. Its documents are put into its
    rows by `fill`, which leaves no room, and its rows are shuffled. What is cut, at a span's end or to fill a row,
    knows the token after it, so every token but a document's first is learnt once an epoch. The window in
    which an epoch ends holds the beginning of the next, too.

    Args:
        stream: of documents.
        size: tokens of a row.
        seed, shuffle: of spans and rows.
    """

    def __init__(self, stream: TokenStream, size: int, *, seed: int, shuffle: bool = True) -> None:
        self._stream, self._size, self._seed, self._shuffle = stream, size, seed, shuffle
        most = stream.num_tokens // size
        span = max(1, min(SPAN, most))
        self._num_spans = max(1, min(WINDOW, most) // span)
        self._num_rows, self._span_tokens = self._num_spans * span, span * size
        self._spans = Spans(stream.num_tokens, self._span_tokens, seed=seed, shuffle=shuffle)
        self._plans: Memo[Plan] = Memo(_PLANS)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """See `Rows.read`."""
        found = []
        for number in numbers.tolist():
            window, row = divmod(number, self._num_rows)
            found.append(self._plans.get(window, self._plan).row(row))
        return _read_rows(self._stream, found, tokens_BS, labels_BS)

    def _plan(self, window: int) -> "Plan":
        numbers, order = window * self._num_spans + np.arange(self._num_spans), np.arange(self._num_rows)
        starts = self._spans.starts(numbers)
        self._stream.need(starts, np.full(len(starts), self._span_tokens))
        spans = [self._pieces(start) for start in starts.tolist()]
        if self._shuffle:
            order = shuffled(order, self._num_rows, self._seed, "rows", window)
        return planned(Pieces.joined(spans), self._size, order)

    def _pieces(self, start: int) -> Pieces:
        """The documents of a span, which may go on at the stream's beginning."""
        stop, end = start + self._span_tokens, self._stream.num_tokens
        if stop <= end:
            return self._stream.pieces(start, stop)
        return Pieces.joined([self._stream.pieces(start, end), self._stream.pieces(0, stop - end)])


class HeldOutRows:
    """All of a stream once, in its order; the last row is filled with end tokens that have no loss.

    Args:
        stream: of documents.
        size: tokens of a row.
        documents: whether documents do not see each other.
    """

    def __init__(self, stream: TokenStream, size: int, *, documents: bool) -> None:
        self._stream, self._size, self._documents = stream, size, documents
        self.num_rows = -(-max(0, stream.num_tokens - 1) // size)
        self._plans: Memo[Plan] = Memo(_PLANS)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """See `Rows.read`."""
        read = self._in_documents if self._documents else self._in_stream
        rows = (slice(at, at + 1) for at in range(len(numbers)))
        found = [read(int(n), tokens_BS[row], labels_BS[row]) for n, row in zip(numbers, rows, strict=True)]
        return tuple(itertools.chain(*found))

    def _in_stream(self, number: int, tokens_1S: Numbers, labels_1S: Numbers) -> Documents:
        start, count = number * self._size, min(self._size + 1, self._stream.num_tokens - number * self._size)
        both = np.full(self._size + 1, self._stream.folder.manifest.end, np.int64)
        self._stream.gather(np.array([start]), np.array([count]), both[:count])
        tokens_1S[0], labels_1S[0] = both[:-1], both[1:]
        labels_1S[0, count - 1 :] = IGNORED
        return ()

    def _in_documents(self, number: int, tokens_1S: Numbers, labels_1S: Numbers) -> Documents:
        window, row = divmod(number, WINDOW)
        return _read_rows(self._stream, [self._plans.get(window, self._plan).row(row)], tokens_1S, labels_1S)

    def _plan(self, window: int) -> "Plan":
        start = window * WINDOW * self._size
        stop = min(start + WINDOW * self._size, self._stream.num_tokens)
        return planned(self._stream.pieces(start, stop), self._size, np.arange(-(-(stop - start) // self._size)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Which parts of documents lie in which row.

    Args:
        pieces: bin by bin.
        borders: the first piece of each bin, and the end.
        order: the bin that each row is.
    """

    pieces: Pieces
    borders: Numbers
    order: Numbers

    def row(self, number: int) -> Pieces:
        """The parts of one row."""
        which = int(self.order[number])
        ours = slice(int(self.borders[which]), int(self.borders[which + 1]))
        return Pieces(self.pieces.starts[ours], self.pieces.lengths[ours], self.pieces.whole[ours])


def planned(pieces: Pieces, size: int, order: Numbers) -> Plan:
    """Documents, or parts of them, put into as many rows as `order` has."""
    filled = fill(pieces.lengths, len(order), size)
    starts = pieces.starts[filled.documents] + filled.begins
    last = filled.begins + filled.lengths == pieces.lengths[filled.documents]
    found = Pieces(starts, filled.lengths, pieces.whole[filled.documents] & last)
    return Plan(found, np.searchsorted(filled.rows, np.arange(len(order) + 1)).astype(np.int64), order)


def _read_rows(stream: TokenStream, rows: list[Pieces], tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
    """Tokens, labels and lengths of documents; what is left of a row counts as one document of end tokens."""
    size, tokens, labels = tokens_BS.shape[1], tokens_BS.reshape(-1), labels_BS.reshape(-1)
    lengths = [row.lengths.tolist() for row in rows]
    filled = sum(map(sum, lengths))
    assert filled == tokens.size or len(rows) == 1, "rows that are read together are full"
    pieces = Pieces.joined(rows)
    stream.gather(pieces.starts, pieces.lengths, tokens[:filled])
    tokens[filled:] = stream.folder.manifest.end
    labels[:-1] = tokens[1:]
    labels[np.cumsum(pieces.lengths) - 1], labels[filled:] = _after(stream, pieces), IGNORED
    if filled < tokens.size:
        lengths[0].append(size - filled)
    return tuple(map(tuple, lengths))


def _after(stream: TokenStream, pieces: Pieces) -> Numbers:
    """The label of each part's last token: the document's next one, or none."""
    found, cut = np.full(len(pieces.starts), IGNORED, np.int64), np.flatnonzero(~pieces.whole)
    after = np.empty(len(cut), np.int64)
    stream.gather(pieces.starts[cut] + pieces.lengths[cut], np.ones(len(cut), np.int64), after)
    found[cut] = after
    return found
