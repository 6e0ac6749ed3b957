"""Mixes folders of tokens into global batches of equally long sequences; a batch number is enough to resume.

Shape letters: B rows, S tokens of a row.
"""

import copy
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.batching.weighted_turns import MAX_CYCLE, WeightedTurns
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.tokens.token_manifest import TokenFolder
from nemo_vfm.data.tokens.token_rows import HeldOutRows, Rows, StreamRows, WholeDocumentRows
from nemo_vfm.data.tokens.token_stream import Numbers, TokenStream

ROUNDED = 10_000


class Mixture:
    """Sources in turns, by their weights, like the batches of a blend (`weighted_turns.py`).

    After n rows the count of every source is less than one row from its share of n. Shares with no short cycle, such as
    those that follow from sizes, are rounded to ten-thousandths first.

    Args:
        weights: by name, each above 0; their sum does not matter.
        seed: decides among sources that are equally due.
        before: rows that were taken from each source earlier, by another mixture; None is none.
    """

    def __init__(self, weights: Mapping[str, Fraction], *, seed: int, before: Mapping[str, int] | None = None) -> None:
        self.shares = normalise_weights(weights)
        self._names, self._turns = list(weights), WeightedTurns(list(self.shares.values()), seed=seed)
        self._before = [(before or {}).get(name, 0) for name in self._names]

    def after(self, before: Mapping[str, int]) -> "Mixture":
        """The same sources in the same turns, where so many rows of each were taken earlier."""
        found = copy.copy(self)
        found._before = [before.get(name, 0) for name in self._names]
        return found

    def turn(self, row: int) -> tuple[int, int]:
        """Which source, and which of its own rows."""
        which, number = self._turns.turn(row)
        return which, self._before[which] + number

    def rows_taken(self, rows: int) -> dict[str, int]:
        """How many rows of each source there are, once so many were taken: `before` of the next mixture."""
        each = (self._before[which] + self._turns.count(which, rows) for which in range(len(self._names)))
        return dict(zip(self._names, each, strict=True))


def normalise_weights(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Weights over their sum, rounded where they would repeat after too many rows; none becomes 0."""
    if not weights or min(weights.values()) <= 0 or len(weights) > ROUNDED:
        weights_text = ", ".join(f"{name} {float(weight):g}" for name, weight in weights.items())
        raise ValueError(
            f"sources need weights above 0, at most {ROUNDED:,} of them; got {weights_text[:500] or 'none'}"
        )
    total = sum(weights.values())
    exact = {name: weight / total for name, weight in weights.items()}
    if lcm(*(share.denominator for share in exact.values())) <= MAX_CYCLE:
        return exact
    # Ten-thousandths by the largest remainder, at least one each.
    parts = {name: max(1, int(share * ROUNDED)) for name, share in exact.items()}
    gains = sorted(exact, key=lambda name: (parts[name] - exact[name] * ROUNDED, name))
    for place in range(ROUNDED - sum(parts.values())):
        parts[gains[place]] += 1
    while sum(parts.values()) > ROUNDED:  # what the smallest were given beyond their own
        parts[max(parts, key=lambda name: (parts[name], name))] -= 1
    return {name: Fraction(part, ROUNDED) for name, part in parts.items()}


Packing = Literal["stream", "documents"]


@dataclass(frozen=True, slots=True)
class TokenSource:
    """One of the folders.

    Args:
        folder: that `TokenizeText` wrote.
        weight: how much of it there is for each of the others' weights; only the ratio matters. None is its size, so
            that all sources are through at the same time; then all are None.
    """

    folder: Path
    weight: float | None = None


Turns = Sequence[tuple[int, int]]  #: (place of its source, number of the row there) of each row


@dataclass(frozen=True, slots=True)
class TokenReader:
    """Reads rows of tokens; see `SampleReader`. Threads read ahead, since there is nothing to decode."""

    rows: Sequence[tuple[str, Rows]]  #: of each source; its name is part of the keys
    size: int  #: tokens of a row
    is_light = True

    def read(self, index: int, samples: Turns) -> Loaded:
        """See `SampleReader.read`."""
        tokens_BS, labels_BS = (np.empty((len(samples), self.size), np.int64) for _ in range(2))
        documents = _read(self.rows, samples, tokens_BS, labels_BS)
        batch = TokenBatch(
            index=index,
            keys=tuple(f"{self.rows[which][0]}-{number:09d}" for which, number in samples),
            weight_B=torch.ones(len(samples)),
            tokens_BS=torch.from_numpy(tokens_BS),
            labels_BS=torch.from_numpy(labels_BS),
            documents=documents,
        )
        return batch, [None] * len(samples)

    def num_bytes(self, samples: Turns) -> int:
        """See `SampleReader.num_bytes`."""
        return 2 * 8 * len(samples) * self.size


@dataclass(frozen=True, slots=True)
class TokenSchedule:
    """Which source each row of a batch is of, and which of its rows; see `BatchSchedule`."""

    mixture: Mixture
    num_tokens: Mapping[str, int]  #: of an epoch of each source
    digests: Mapping[str, str]  #: of all that says which tokens a row of a source has
    batch_size: int
    size: int  #: tokens of a row
    first: int = 0  #: number of the mixture's first batch

    @property
    def batches_per_epoch(self) -> float:
        """Until the source that takes longest has given each of its tokens once; others come again meanwhile."""
        rows = (count / self.size / float(self.mixture.shares[name]) for name, count in self.num_tokens.items())
        return max(rows) / self.batch_size

    def samples(self, index: int, rank: int, num_ranks: int) -> Turns:
        """See `BatchSchedule.samples`."""
        share = self.batch_size // num_ranks
        first = (index - self.first) * self.batch_size + rank * share
        return [self.mixture.turn(row) for row in range(first, first + share)]

    def largest(self, num_ranks: int) -> list[Turns]:
        """See `BatchSchedule.largest`: all are alike."""
        return [self.samples(self.first, 0, num_ranks)]

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`; its parts are the sources."""
        taken = self.mixture.rows_taken((index - self.first) * self.batch_size)
        return {
            name: ReadPosition(taken[name], count // self.size, self.digests[name])
            for name, count in self.num_tokens.items()
        }

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        """See `BatchSchedule.at`: the turns restart, and each source continues from its position."""
        return replace(self, first=first, mixture=self.mixture.after(places))


class TokenData(ScheduledData[Turns]):
    """Sequences of tokens from folders, each row of one source.

    Row n of the training, and so global batch g, is a function of the folders, the weights, the seed and the number:
    not of ranks, threads or resumes; nothing is replayed. Every token of a source comes once in each of its epochs.

    Args:
        sources: by name; the name seeds the source's own order.
        sequence_length: tokens of a row.
        batch_size: rows of a global batch, over all ranks.
        packing: `stream` lays documents one after another and cuts anywhere, a document sees what is before it in its
            row; `documents` puts whole documents side by side as far as it can, and none sees another.
        weigh: what weights count: `tokens`, or `documents`, where a source of long ones gives as many tokens more.
        val_fraction: share of each source's documents that is held out, at least 0 and below 1; copies of a document
            are on one side.
        shuffle: False gives each source's rows as they lie.
        num_workers: threads that read ahead on each rank; 0 reads when asked.
        verify: reads all files once at the start and compares them with the hashes in `tokens.json`.
        tokenizer: the one that the tokens must have come from; None compares the sources with each other alone.
    """

    def __init__(
        self,
        *,
        sources: Mapping[str, TokenSource],
        sequence_length: int,
        batch_size: int,
        packing: Packing = "stream",
        weigh: Literal["tokens", "documents"] = "tokens",
        val_fraction: float = 0.0,
        shuffle: bool = True,
        num_workers: int = 0,
        verify: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if min(sequence_length, batch_size) < 1 or num_workers < 0 or not 0 <= val_fraction < 1:
            raise ValueError(
                f"sequence_length ({sequence_length}) and batch_size ({batch_size}) must be at least 1, num_workers "
                f"({num_workers}) at least 0, val_fraction ({val_fraction}) at least 0 and below 1"
            )
        if not sources or len({source.weight is None for source in sources.values()}) > 1:
            raise ValueError(f"set a weight for every source or for none; {len(sources)} are given")
        if bad := [name for name, s in sources.items() if s.weight is not None and not 0 < s.weight < float("inf")]:
            raise ValueError(f"the weight of source {bad[0]} is {sources[bad[0]].weight}, expected a number above 0")
        self.sources, self.sequence_length, self.batch_size = dict(sources), sequence_length, batch_size
        self.folders = {name: local(source.folder, f"the folder of source {name}") for name, source in sources.items()}
        self.packing, self.weigh, self.val_fraction, self.shuffle = packing, weigh, val_fraction, shuffle
        self.verify, self.tokenizer = verify, tokenizer
        super().__init__(num_workers=num_workers, max_bad_in_a_row=1)  # none is: unreadable tokens stop the run
        self._opened: dict[str, TokenFolder] | None = None
        self._shapes: SampleShapes | None = None  # of tokens that are made up; None where they are read
        self._made: tempfile.TemporaryDirectory[str] | None = None  # where they lie, as long as this process does

    def mocked(self, shapes: SampleShapes) -> Self:
        """See `HasMock`."""
        found = copy.copy(self)
        found._shapes, found._opened, found._made = shapes, None, None
        return found

    def samples_per_batch(self) -> int:
        """See `ResumablePhases`."""
        return self.batch_size

    def tokens_per_sample(self) -> int:
        """See `ResumablePhases`."""
        return self.sequence_length

    def vocab_size(self) -> int:
        """See `HasVocab`."""
        return next(iter(self._folders().values())).manifest.vocab_size

    def in_phase(self, *, batch_size: int | None, blend: Mapping[str, float] | None, read: Mapping[str, int]) -> Self:
        """See `ResumablePhases`; a blend names the sources that are read, and each goes on where it was left."""
        if unknown := (set(blend or ()) | read.keys()) - self.sources.keys():
            raise ValueError(f"{sorted(unknown)[0]} is not a source of this data: {', '.join(self.sources)}")
        named = self.sources if blend is None else {n: TokenSource(self.sources[n].folder, w) for n, w in blend.items()}
        found = type(self)(
            sources=named, sequence_length=self.sequence_length, batch_size=batch_size or self.batch_size,
            packing=self.packing, weigh=self.weigh, val_fraction=self.val_fraction, shuffle=self.shuffle,
            num_workers=self.num_workers, verify=self.verify, tokenizer=self.tokenizer,
        )  # fmt: skip
        found._places, found._shapes = dict(read), self._shapes
        return found

    def read_after(self, batches: int, *, seed: int) -> dict[str, int]:
        """See `ResumablePhases`."""
        mixture = Mixture(self._weights(self._streams()), seed=derive(seed, "tokens"), before=self._places)
        return self._places | mixture.rows_taken(batches * self.batch_size)

    def batching(self) -> Json:
        """See `ResumableData`."""
        weights = {name: source.weight for name, source in self.sources.items()}
        return {"batch_size": self.batch_size, "weights": weights, "weigh": self.weigh}

    def with_batching(self, batching: Json) -> Self:
        """See `ResumableData`."""
        found = self.in_phase(batch_size=batching["batch_size"], blend=batching["weights"], read={})
        found.weigh = batching["weigh"]
        return found

    def open(self, seed: int) -> tuple[TokenSchedule, TokenReader]:
        """See `ScheduledData.open`.

        Raises:
            UserError: a folder is none or not finished, has another tokenizer, or is shorter than a row.
            DataError: a folder is damaged.
        """
        streams = self._streams()
        for name, stream in streams.items():
            if stream.num_tokens < self.sequence_length:
                raise UserError(
                    f"source {name} has {stream.num_tokens:,} tokens to train on, fewer than one sequence of "
                    f"{self.sequence_length:,}; lower sequence_length or val_fraction, or drop the source"
                )
        mixture = Mixture(self._weights(streams), seed=derive(seed, "tokens"))
        kind = WholeDocumentRows if self.packing == "documents" else StreamRows
        rows: list[tuple[str, Rows]] = [
            (name, kind(stream, self.sequence_length, seed=derive(seed, "source", name), shuffle=self.shuffle))
            for name, stream in streams.items()
        ]
        digests = dict[str, str]()
        for name, stream in streams.items():
            share, files = float(mixture.shares[name]), self._folders()[name].manifest.shards
            info(f"{name}: {stream.num_tokens:,} tokens of {stream.num_documents:,} documents, {share:.2%} of the rows")
            how = (seed, name, self.packing, self.shuffle, self.val_fraction, self.sequence_length)
            digests[name] = sha256_text(f"{how} {[shard.tokens_sha256 for shard in files]}")[:16]
        num_tokens = {name: stream.num_tokens for name, stream in streams.items()}
        schedule = TokenSchedule(mixture, num_tokens, digests, self.batch_size, self.sequence_length)
        return schedule, TokenReader(rows, self.sequence_length)

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`: of every source, in its order; the last batch of one may be smaller."""
        if not self.val_fraction:
            return []
        sides = {
            name: TokenStream(folder, val_fraction=self.val_fraction, held_out=True)
            for name, folder in self._folders().items()
        }
        for name, stream in sides.items():
            if stream.num_tokens < 2:
                warn(f"no document of {name} is held out; raise data.val_fraction, which is {self.val_fraction:g}")
        documents = self.packing == "documents"
        held_out = {name: HeldOutRows(s, self.sequence_length, documents=documents) for name, s in sides.items()}
        slices = [
            [(which, number) for number in range(first, min(first + self.batch_size, rows.num_rows))]
            for which, rows in enumerate(held_out.values())
            for first in range(0, rows.num_rows, self.batch_size)
        ]
        named = [(f"{name}-held-out", rows) for name, rows in held_out.items()]
        return self.read_in_order(TokenReader(named, self.sequence_length), slices)

    def _streams(self) -> dict[str, TokenStream]:
        folders = self._folders()
        return {name: TokenStream(folder, val_fraction=self.val_fraction) for name, folder in folders.items()}

    def _weights(self, streams: Mapping[str, TokenStream]) -> dict[str, Fraction]:
        """What the rows of each source count, all rows being equally long."""
        found = {}
        for name, stream in streams.items():
            weight = self.sources[name].weight
            exact = Fraction(stream.num_tokens) if weight is None else Fraction(str(weight))
            if weight is not None and self.weigh == "documents":
                exact *= Fraction(stream.num_tokens, stream.num_documents)
            found[name] = exact
        return found

    def _folders(self) -> dict[str, TokenFolder]:
        if self._opened is None:
            folders, is_made = self.folders, self._shapes is not None
            if self._shapes is not None:
                from nemo_vfm.data.tokens.mock_tokens import write_mock_tokens

                self._made = tempfile.TemporaryDirectory(prefix="nemo-vfm-mock-")
                folders = {name: Path(self._made.name) / str(number) for number, name in enumerate(self.sources)}
                for name, made in folders.items():
                    made.mkdir()
                    write_mock_tokens(made, name, vocab=self._shapes.vocab(), sequence_length=self.sequence_length,
                                      batch_size=self.batch_size)  # fmt: skip
            opened = {name: TokenFolder(folder) for name, folder in folders.items()}
            first = next(iter(opened.values())).manifest
            wanted = first.tokenizer if self.tokenizer is None or is_made else self.tokenizer.fingerprint()
            for name, folder in opened.items():
                if (folder.manifest.tokenizer, folder.manifest.vocab_size) != (wanted, first.vocab_size):
                    raise UserError(
                        f"the tokens of source {name} ({folder.folder}) come from tokenizer "
                        f"{folder.manifest.tokenizer[:16]} with {folder.manifest.vocab_size:,} tokens, expected "
                        f"{wanted[:16]} with {first.vocab_size:,}; tokenize all sources with the model's tokenizer"
                    )
            for folder in opened.values() if self.verify else ():
                folder.verify()
            self._opened = opened
        return self._opened


def _read(
    rows: Sequence[tuple[str, Rows]], turns: Turns, tokens_BS: Numbers, labels_BS: Numbers
) -> tuple[tuple[int, ...], ...]:
    sources, numbers = (np.array(column) for column in zip(*turns, strict=True))
    if (sources == sources[0]).all():
        return rows[turns[0][0]][1].read(numbers, tokens_BS, labels_BS)
    documents: list[tuple[int, ...]] = [()] * len(turns)
    for which in np.unique(sources).tolist():
        (ours,) = np.nonzero(sources == which)
        tokens, labels = (np.empty((len(ours), tokens_BS.shape[1]), np.int64) for _ in range(2))
        found = rows[which][1].read(numbers[ours], tokens, labels)
        tokens_BS[ours], labels_BS[ours] = tokens, labels
        for place, lengths in zip(ours.tolist(), found, strict=False):
            documents[place] = lengths
    return tuple(documents) if any(documents) else ()
