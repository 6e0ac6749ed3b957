"""Fills rows of equal length with documents: computes which parts of which documents lie in which row.

This is best-fit-decreasing: the longest first, each into the row with the least room that is enough. Documents that fit
no row are cut to the room that is left, so rows are full as long as there are tokens. Where the lengths add up to the
rows, nothing is padded. The price is that some documents are cut (Ding et al., "Fewer truncations", 2024, cut none but
leave room).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FilledRow:
    """Parts of documents, row by row."""

    rows: Numbers  #: which row each part is in, ascending
    documents: Numbers  #: which document it is of
    begins: Numbers  #: where in the document it begins
    lengths: Numbers  #: its tokens


def fill(lengths: Numbers, num_rows: int, size: int) -> FilledRow:
    """Every token of every document in exactly one of `num_rows` rows, each of `size` tokens."""
    assert int(lengths.sum()) <= num_rows * size, "more tokens than fit into the rows"
    # Documents longer than a row as rows and a rest: which document, where it begins, how many tokens.
    counts = -(-lengths // size)
    documents = np.repeat(np.arange(len(lengths)), counts)
    begins = (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    tokens = np.minimum(lengths[documents] - begins, size)
    placed, rooms, left = _best_fit(tokens, num_rows, size)
    parts = [(row, int(documents[part]), int(begins[part]), int(tokens[part])) for part, row in placed]
    # What did not fit, longest first, into the largest rooms first: few cuts, and few short parts.
    free = [(room, row) for room in sorted(rooms) if room for row in sorted(rooms[room], reverse=True)]
    for part in left:
        begin, rest = int(begins[part]), int(tokens[part])
        while rest:
            room, row = free.pop()
            taken = min(room, rest)
            parts.append((row, int(documents[part]), begin, taken))
            begin, rest = begin + taken, rest - taken
            if room > taken:
                free.append((room - taken, row))
    table = np.array(parts, np.int64).reshape(-1, 4)
    return FilledRow(*table[np.argsort(table[:, 0], kind="stable")].T)


def _best_fit(
    tokens: Numbers, num_rows: int, size: int
) -> tuple[list[tuple[int, int]], dict[int, list[int]], list[int]]:
    """(part, row) where one had room, rows by the room that is left, and the parts for which none had."""
    rooms: dict[int, list[int]] = {size: list(range(num_rows - 1, -1, -1))}
    there = 1 << size if num_rows else 0  # bit r: there is a row with room r
    placed, left = [], []
    order = np.argsort(-tokens, kind="stable")
    for part, length in zip(order.tolist(), tokens[order].tolist(), strict=True):
        enough = there >> length
        if not enough:
            left.append(part)
            continue
        room = length + (enough & -enough).bit_length() - 1
        row = rooms[room].pop()
        if not rooms[room]:
            there ^= 1 << room
        placed.append((part, row))
        rooms.setdefault(room - length, []).append(row)
        there |= 1 << room - length
    return placed, rooms, left
