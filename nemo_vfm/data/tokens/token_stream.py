"""Splits a folder of tokens into a training and a held-out side, each one stream of documents.

A position of a stream is a number below its length. Only the start of each run of neighbouring documents is kept, so a
stream of a billion documents takes little memory. Positions are found by bisection.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.tokens.token_manifest import TokenFolder, Tokens

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Documents, or parts of them, that lie in a part of a stream."""

    starts: Numbers  #: position of the first token of each
    lengths: Numbers  #: tokens of each
    whole: NDArray[np.bool_]  #: whether its last token is the document's last

    @staticmethod
    def concat(parts: "list[Pieces]") -> "Pieces":
        """One list after another."""
        return Pieces(*(np.concatenate([getattr(part, name) for part in parts]) for name in Pieces.__slots__))


class TokenStream:
    """The documents of one side of a folder.

    Args:
        folder: of tokens.
        val_fraction: share of the documents that is held out; copies of one document are on one side.
        held_out: whether this is the side that is held out.
    """

    def __init__(self, folder: TokenFolder, *, val_fraction: float = 0.0, held_out: bool = False) -> None:
        self.folder, self._side = folder, (val_fraction, held_out)
        runs = []  # of each shard begins and stops of runs of documents of this side, and how many documents these are
        for number, shard in enumerate(folder.manifest.shards):
            if val_fraction:
                ours = (folder.marks(number) < np.uint64(val_fraction * 2.0**64)) == held_out
                changes = np.diff(np.concatenate([[False], ours, [False]]).astype(np.int8))
                borders = np.concatenate([[0], folder.ends(number).astype(np.int64)])
                edges = borders[np.flatnonzero(changes == 1)], borders[np.flatnonzero(changes == -1)]
                runs.append((*edges, int(ours.sum())))
            else:
                whole = np.array([0] * (not held_out), np.int64)
                runs.append((whole, whole + shard.tokens, 0 if held_out else shard.documents))
        self._shards = np.repeat(np.arange(len(runs)), [len(begins) for begins, _, _ in runs])
        self._begins: Numbers = np.concatenate([begins for begins, _, _ in runs])
        stops: Numbers = np.concatenate([stops for _, stops, _ in runs])
        self._before: Numbers = np.concatenate([[0], np.cumsum(stops - self._begins)]).astype(np.int64)
        self.num_tokens, self.num_documents = int(self._before[-1]), sum(count for _, _, count in runs)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TokenStream, self.folder, val_fraction=self._side[0], held_out=self._side[1]), ()

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill `out` from a position on; after the last token comes the first again."""
        position, done = start % self.num_tokens, 0
        run = self._run(position)
        while done < len(out):
            begin = int(self._begins[run]) + position - int(self._before[run])
            count = min(len(out) - done, int(self._before[run + 1]) - position)
            shard = int(self._shards[run])
            out[done : done + count] = self.folder.tokens(shard)[begin : begin + count]
            done, position, run = done + count, position + count, run + 1
            if run == len(self._shards):
                position = run = 0

    def need(self, starts: Numbers, lengths: Numbers) -> None:
        """Say which parts of the stream are read next; of one that goes over several runs, the first alone."""
        shards, begins, counts = self._locate(starts, lengths)
        for shard, begin, count in zip(shards.tolist(), begins.tolist(), counts.tolist(), strict=True):
            self.folder.need(shard, begin, count)

    def gather(self, starts: Numbers, lengths: Numbers, out: Numbers) -> None:
        """Fill `out` with parts of the stream, one after another, which have as many tokens as it has room for."""
        shards, begins, counts = self._locate(starts, lengths)
        at, tokens, columns = 0, self.folder.tokens, (starts, lengths, shards, begins, counts)
        for start, length, shard, begin, count in zip(*(column.tolist() for column in columns), strict=True):
            if count == length:
                out[at : at + length] = tokens(shard)[begin : begin + length]
            else:
                self.read(start, out[at : at + length])
            at += length
        self._require_known(out)

    def gather_with_next(self, starts: Numbers, tokens_BS: Numbers, labels_BS: Numbers) -> None:
        """Rows of tokens from these positions on, and the token after each of them."""
        size = tokens_BS.shape[1] + 1
        shards, begins, counts = self._locate(starts, np.full(len(starts), size))
        columns = list(zip(starts.tolist(), shards.tolist(), begins.tolist(), counts.tolist(), strict=True))
        for _, shard, begin, count in columns:
            self.folder.need(shard, begin, count)
        for at, (start, shard, begin, count) in enumerate(columns):
            line: Tokens | Numbers = self.folder.tokens(shard)[begin : begin + size]
            if count < size:
                self.read(start, line := np.empty(size, np.int64))
            tokens_BS[at], labels_BS[at] = line[:-1], line[1:]
        self._require_known(tokens_BS[:, :1])
        self._require_known(labels_BS)

    def _locate(self, starts: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The shard of each part, where in it the part begins, and how much of it lies in the same run."""
        runs = np.searchsorted(self._before, starts, side="right") - 1
        before, counts = self._before[runs], np.minimum(lengths, self._before[runs + 1] - starts)
        return self._shards[runs], self._begins[runs] + starts - before, counts

    def _require_known(self, tokens: Numbers) -> None:
        """A model would look up others beyond its table's end; where every number is a token there are none."""
        vocab_size = self.folder.manifest.vocab_size
        if vocab_size < 1 << 8 * self.folder.dtype.itemsize and tokens.size and (most := tokens.max()) >= vocab_size:
            raise DataError(
                f"{self.folder.folder} holds token {most}, but its vocabulary ends at {vocab_size:,}: it is damaged; "
                "tokenize again"
            )

    def pieces(self, start: int, stop: int) -> Pieces:
        """The documents between two positions; the first and the last may be cut."""
        found = []
        for run in range(self._run(start), self._run(stop - 1) + 1):
            low, high = max(start, int(self._before[run])), min(stop, int(self._before[run + 1]))
            ends = self.folder.ends(int(self._shards[run]))  # a run lies in one shard
            shift = int(self._before[run]) - int(self._begins[run])  # from a place in the shard to a position
            first = int(np.searchsorted(ends, np.uint64(low - shift), side="right"))
            last = int(np.searchsorted(ends, np.uint64(high - shift), side="left"))
            stops = ends[first : last + 1].astype(np.int64) + shift
            borders = np.concatenate([[low], np.minimum(stops, high)])
            lengths = np.diff(borders)
            if not len(lengths) or lengths.min() < 1 or borders[-1] != high:
                raise DataError(
                    f"the documents of {self.folder.folder} do not follow one another; run the tokenizing step again"
                )
            found.append(Pieces(borders[:-1], lengths, stops <= high))
        return Pieces.concat(found)

    def _run(self, position: int) -> int:
        return int(np.searchsorted(self._before, position, side="right")) - 1
