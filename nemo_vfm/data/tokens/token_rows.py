"""Reads the tokens, labels and documents of a row by its number, for both ways of packing a stream.

Shape letters: B rows, S tokens of a row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.data.tokens.memo import Memo
from nemo_vfm.data.tokens.row_filling import fill
from nemo_vfm.data.tokens.token_stream import Pieces, TokenStream

_ROUNDS = 6
#: So few are sorted at once, which is even; a network over few numbers prefers some orders (five: up to 1.7 times).
_FEW = 1 << 14


def shuffle_positions(places: NDArray[np.int64], count: int, seed: int, *names: str | int) -> NDArray[np.int64]:
    """Where a shuffle of `count` things puts these; a bijection of range(count).

    Few things are sorted by random numbers. For many, a Feistel network over the next power of four, walked along its
    cycle until it is back in range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 4). A
    stored permutation of 250 million sequences, a trillion tokens, takes 2 GB at each start.

    Args:
        places: numbers below `count`.
        seed, names: which shuffle.
    """
    keys = [np.uint64(derive(seed, "shuffle", *names, turn)) for turn in range(_ROUNDS)]
    if count <= _FEW:
        numbers = _mix64(_mix64(np.arange(count, dtype=np.uint64) + keys[0]) ^ keys[1])
        return np.argsort(numbers, kind="stable")[places]
    half = ((count - 1).bit_length() + 1) // 2
    found = _feistel_rounds(places.astype(np.uint64), half, keys)
    while (outside := found >= np.uint64(count)).any():
        found[outside] = _feistel_rounds(found[outside], half, keys)
    return found.astype(np.int64)


def _feistel_rounds(numbers: NDArray[np.uint64], half: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix64(right + key) & mask)
    return left << bits | right


def _mix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit depends on every bit (Steele, Lea and Flood, "Fast splittable generators", 2014, figure 16)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


_BLOCK = 512  # spans that are computed together: numpy takes as long for one


class Spans:
    """Equally long spans 0, 1, 2, ... of a stream, without end, in shuffled order.

    A stream that restarts after its end is one endless line, cut into spans. So where the length does not divide the
    stream, each epoch is cut elsewhere. The spans that begin in an epoch are shuffled among each other. So every token
    comes once per epoch, a position is found by arithmetic alone, and the order's whole state is the number.

    Args:
        num_tokens: of the stream.
        length: of a span, in tokens; at most as many.
        seed: of the order.
        shuffle: False gives them as they lie.
    """

    def __init__(self, num_tokens: int, length: int, *, seed: int, shuffle: bool = True) -> None:
        if not 1 <= length <= num_tokens:
            raise ValueError(f"a stream of {num_tokens:,} tokens has no span of {length:,}")
        self._num_tokens, self._length, self._seed, self._shuffle = num_tokens, length, seed, shuffle
        self._blocks: Memo[NDArray[np.int64]] = Memo(8)

    def starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of the first tokens of spans."""
        blocks, places = numbers // _BLOCK, numbers % _BLOCK
        if blocks[0] == blocks[-1]:  # the rows of a batch are neighbours, so mostly
            return self._blocks.get(int(blocks[0]), self._block)[places]
        each = [self._blocks.get(block, self._block)[place] for block, place in zip(blocks, places, strict=True)]
        return np.array(each, np.int64)

    def _block(self, block: int) -> NDArray[np.int64]:
        numbers = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
        epochs = numbers * self._length // self._num_tokens
        for epoch in np.unique(epochs).tolist() if self._shuffle else ():
            ours = epochs == epoch
            first, after = self.before(epoch), self.before(epoch + 1)
            numbers[ours] = first + shuffle_positions(numbers[ours] - first, after - first, self._seed, "spans", epoch)
        return numbers * self._length % self._num_tokens

    def before(self, epoch: int) -> int:
        """How many spans begin before an epoch does."""
        return -(-epoch * self._num_tokens // self._length)


WINDOW = 1024  #: rows whose documents are packed together
SPAN = 32  #: rows of neighbouring documents in a window: a span's two ends cut a document each
_PLANS = 4  # windows that are remembered; one has some 10,000 documents, 250 KB

Numbers = NDArray[np.int64]
Documents = tuple[tuple[int, ...], ...]


class StreamRows:
    """Documents one after another, cut into rows wherever a row ends; a document sees those before it in its row."""

    def __init__(self, stream: TokenStream, size: int, *, seed: int, shuffle: bool = True) -> None:
        self._stream, self._settings = stream, (size, seed, shuffle)
        self._spans = Spans(stream.num_tokens, size, seed=seed, shuffle=shuffle)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """Fill the arrays, say nothing of documents; the last label of a row is the first token of the next row."""
        self._stream.gather_with_next(self._spans.starts(numbers), tokens_BS, labels_BS)
        return ()


class WholeDocumentRows:
    """Documents side by side that do not see each other, each whole in a row as far as it can be.

    A window is as many spans of the shuffled stream as hold the tokens of `WINDOW` rows. Its documents are put into its
    rows by `fill`, which leaves no room, and its rows are shuffled. What is cut, at a span's end or to fill a row,
    knows the token after it, so every token but a document's first is learnt once an epoch. The window in
    which an epoch ends holds the beginning of the next, too.
    """

    def __init__(self, stream: TokenStream, size: int, *, seed: int, shuffle: bool = True) -> None:
        self._stream, self._size, self._seed, self._shuffle = stream, size, seed, shuffle
        most = stream.num_tokens // size
        span = max(1, min(SPAN, most))
        self._num_spans = max(1, min(WINDOW, most) // span)
        self._num_rows, self._span_tokens = self._num_spans * span, span * size
        self._spans = Spans(stream.num_tokens, self._span_tokens, seed=seed, shuffle=shuffle)
        self._plans: Memo[RowPlan] = Memo(_PLANS)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """See `Rows`."""
        found = []
        for number in numbers.tolist():
            window, row = divmod(number, self._num_rows)
            found.append(self._plans.get(window, self._plan).row(row))
        return _read_rows(self._stream, found, tokens_BS, labels_BS)

    def _plan(self, window: int) -> "RowPlan":
        numbers, order = window * self._num_spans + np.arange(self._num_spans), np.arange(self._num_rows)
        starts = self._spans.starts(numbers)
        self._stream.need(starts, np.full(len(starts), self._span_tokens))
        spans, end = list[Pieces](), self._stream.num_tokens
        for start in starts.tolist():  # a span may go on at the stream's beginning
            stop = start + self._span_tokens
            spans.append(self._stream.pieces(start, min(stop, end)))
            if stop > end:
                spans.append(self._stream.pieces(0, stop - end))
        if self._shuffle:
            order = shuffle_positions(order, self._num_rows, self._seed, "rows", window)
        return plan_rows(Pieces.concat(spans), self._size, order)


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
        self._plans: Memo[RowPlan] = Memo(_PLANS)

    def read(self, numbers: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
        """See `Rows`."""
        documents: list[tuple[int, ...]] = []
        for at, number in enumerate(numbers.tolist()):
            if self._documents:
                window, row = divmod(number, WINDOW)
                pieces = self._plans.get(window, self._plan).row(row)
                documents += _read_rows(self._stream, [pieces], tokens_BS[at : at + 1], labels_BS[at : at + 1])
                continue
            start, count = number * self._size, min(self._size + 1, self._stream.num_tokens - number * self._size)
            both = np.full(self._size + 1, self._stream.folder.manifest.end, np.int64)
            self._stream.gather(np.array([start]), np.array([count]), both[:count])
            tokens_BS[at], labels_BS[at] = both[:-1], both[1:]
            labels_BS[at, count - 1 :] = IGNORED
        return tuple(documents)

    def _plan(self, window: int) -> "RowPlan":
        start = window * WINDOW * self._size
        stop = min(start + WINDOW * self._size, self._stream.num_tokens)
        return plan_rows(self._stream.pieces(start, stop), self._size, np.arange(-(-(stop - start) // self._size)))


#: Rows of equal length, each by its number. `read` fills arrays of tokens and labels, and gives the lengths of each
#: row's documents, or nothing where all that is in a row is seen.
Rows = StreamRows | WholeDocumentRows | HeldOutRows


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Which parts of documents lie in which row."""

    pieces: Pieces  #: bin by bin
    borders: Numbers  #: the first piece of each bin, and the end
    order: Numbers  #: the bin that each row is

    def row(self, number: int) -> Pieces:
        """The parts of one row."""
        which = int(self.order[number])
        ours = slice(int(self.borders[which]), int(self.borders[which + 1]))
        return Pieces(self.pieces.starts[ours], self.pieces.lengths[ours], self.pieces.whole[ours])


def plan_rows(pieces: Pieces, size: int, order: Numbers) -> RowPlan:
    """Documents, or parts of them, put into as many rows as `order` has."""
    filled = fill(pieces.lengths, len(order), size)
    starts = pieces.starts[filled.documents] + filled.begins
    last = filled.begins + filled.lengths == pieces.lengths[filled.documents]
    found = Pieces(starts, filled.lengths, pieces.whole[filled.documents] & last)
    return RowPlan(found, np.searchsorted(filled.rows, np.arange(len(order) + 1)).astype(np.int64), order)


def _read_rows(stream: TokenStream, rows: list[Pieces], tokens_BS: Numbers, labels_BS: Numbers) -> Documents:
    """Tokens, labels and lengths of documents; what is left of a row counts as one document of end tokens."""
    size, tokens, labels = tokens_BS.shape[1], tokens_BS.reshape(-1), labels_BS.reshape(-1)
    lengths = [row.lengths.tolist() for row in rows]
    filled = sum(map(sum, lengths))
    assert filled == tokens.size or len(rows) == 1, "rows that are read together are full"
    pieces = Pieces.concat(rows)
    stream.gather(pieces.starts, pieces.lengths, tokens[:filled])
    tokens[filled:] = stream.folder.manifest.end
    labels[:-1] = tokens[1:]
    # The label of each part's last token: the document's next one, or none.
    found, cut = np.full(len(pieces.starts), IGNORED, np.int64), np.flatnonzero(~pieces.whole)
    after = np.empty(len(cut), np.int64)
    stream.gather(pieces.starts[cut] + pieces.lengths[cut], np.ones(len(cut), np.int64), after)
    found[cut] = after
    labels[np.cumsum(pieces.lengths) - 1], labels[filled:] = found, IGNORED
    if filled < tokens.size:
        lengths[0].append(size - filled)
    return tuple(map(tuple, lengths))
