"""Mixes folders of tokens into global batches of equally long sequences; a batch number is enough to resume.

Shape letters: B rows, S tokens of a row.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple, Self

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
from nemo_vfm.core.types.training_data import ReadPosition, TrainingData
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.faults import Faults
from nemo_vfm.data.loader.batch_loader import Batches
from nemo_vfm.data.tokens.mixture import Mixture
from nemo_vfm.data.tokens.token_folder import TokenFolder
from nemo_vfm.data.tokens.token_rows import DocumentRows, HeldOutRows, Rows, StreamRows
from nemo_vfm.data.tokens.token_stream import Numbers, TokenStream

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


class TokenData(TrainingData):
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
        self.num_workers, self.verify, self.tokenizer = num_workers, verify, tokenizer
        self._opened: dict[str, TokenFolder] | None = None
        self._before, self._begins = dict[str, int](), 0
        self._started: _Started | None = None
        self.faults = Faults(max_in_a_row=1)  #: none: tokens that cannot be read stop the run

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
        found._before = dict(read)
        return found

    def read_after(self, batches: int, *, seed: int) -> dict[str, int]:
        """See `ResumablePhases`."""
        return self._before | self._mixture(self._streams(), seed).taken(batches * self.batch_size)

    def begins(self) -> int:
        """See `ResumableData`."""
        return self._begins

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`; its parts are the sources."""
        opened = self._open()
        rows = opened.mixture.taken((index - self._begins) * self.batch_size)
        return {
            name: ReadPosition(
                rows[name], stream.num_tokens // self.sequence_length, self._digest(name, opened.by.seed)
            )
            for name, stream in opened.streams.items()
        }

    def _digest(self, name: str, seed: int) -> str:
        """Of all that says which tokens a row of a source has."""
        files = self._folders()[name].manifest.shards
        how = (seed, name, self.packing, self.shuffle, self.val_fraction, self.sequence_length)
        return sha256_text(f"{how} {[shard.tokens_sha256 for shard in files]}")[:16]

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """See `ResumableData`: the order of the blend restarts, and each source continues from its position."""
        found = copy.copy(self)
        found._begins, found._before, found._started = first_batch, dict(places), None
        return found

    def batching(self) -> Json:
        """See `ResumableData`."""
        weights = {name: source.weight for name, source in self.sources.items()}
        return {"batch_size": self.batch_size, "weights": weights, "weigh": self.weigh}

    def batched(self, batching: Json) -> Self:
        """See `ResumableData`."""
        found = self.in_phase(batch_size=batching["batch_size"], blend=batching["weights"], read={})
        found.weigh = batching["weigh"]
        return found

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`.

        Raises:
            UserError: a folder is none or not finished, has another tokenizer, or is shorter than a row; or the batch
                size is not divisible by the number of ranks.
            DataError: a folder is damaged.
        """
        if self.batch_size % num_ranks:
            raise UserError(f"batch_size {self.batch_size} is not divisible by {num_ranks} ranks")
        assert first_batch >= self._begins, f"batch {first_batch} is before the first, {self._begins}"
        by = _By(seed, first_batch, rank, num_ranks)
        streams = self._streams()
        for name, stream in streams.items():
            self._require_enough(name, stream)
        mixture = self._mixture(streams, seed)
        rows = {name: self._rows(stream, derive(seed, "source", name)) for name, stream in streams.items()}
        self._started = _Started(streams, mixture, rows, by)
        for name, stream in streams.items():
            share = float(mixture.shares[name])
            info(f"{name}: {stream.num_tokens:,} tokens of {stream.num_documents:,} documents, {share:.2%} of the rows")

    def by_number(self) -> "TokenBatches":
        """This rank's batches; once it is started."""
        opened = self._open()
        return TokenBatches(
            opened.mixture, opened.rows, self.sequence_length, self.batch_size, opened.by.rank, opened.by.ranks,
            self._begins,
        )  # fmt: skip

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`."""
        first = self._open().by.first_batch
        return Batches(self.by_number(), first=first, num_workers=self.num_workers, faults=self.faults)

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
        rows = {name: HeldOutRows(s, self.sequence_length, documents=self._apart()) for name, s in sides.items()}
        return _HeldOut(rows, self.sequence_length, self.batch_size)

    def batches_per_epoch(self) -> float:
        """Until the source that takes longest has given each of its tokens once; others come again meanwhile."""
        opened = self._open()
        rows = (
            s.num_tokens / self.sequence_length / float(opened.mixture.shares[n]) for n, s in opened.streams.items()
        )
        return max(rows) / self.batch_size

    def num_train_samples(self) -> int:
        """Rows in such an epoch."""
        return round(self.batches_per_epoch() * self.batch_size)

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`."""
        return {"batch_size": self.batch_size}

    def mean_batch_size(self) -> float:
        """See `Blendable.mean_batch_size`."""
        return float(self.batch_size)

    def reads_ahead(self) -> bool:
        """See `Blendable.reads_ahead`."""
        return self.num_workers > 0

    def _apart(self) -> bool:
        return self.packing == "documents"

    def _rows(self, stream: TokenStream, seed: int) -> Rows:
        kind = DocumentRows if self._apart() else StreamRows
        return kind(stream, self.sequence_length, seed=seed, shuffle=self.shuffle)

    def _streams(self) -> dict[str, TokenStream]:
        folders = self._folders()
        return {name: TokenStream(folder, val_fraction=self.val_fraction) for name, folder in folders.items()}

    def _mixture(self, streams: Mapping[str, TokenStream], seed: int) -> Mixture:
        return Mixture(self._weights(streams), seed=derive(seed, "tokens"), before=self._before)

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
            opened = {name: TokenFolder(folder) for name, folder in self.folders.items()}
            self._require_one_tokenizer(opened)
            for folder in opened.values() if self.verify else ():
                folder.verify()
            self._opened = opened
        return self._opened

    def _require_one_tokenizer(self, folders: Mapping[str, TokenFolder]) -> None:
        first = next(iter(folders.values())).manifest
        wanted = first.tokenizer if self.tokenizer is None else self.tokenizer.fingerprint()
        for name, folder in folders.items():
            if (folder.manifest.tokenizer, folder.manifest.vocab_size) != (wanted, first.vocab_size):
                raise UserError(
                    f"the tokens of source {name} ({folder.folder}) come from tokenizer "
                    f"{folder.manifest.tokenizer[:16]} with {folder.manifest.vocab_size:,} tokens, expected "
                    f"{wanted[:16]} with {first.vocab_size:,}; tokenize all sources with the model's tokenizer"
                )

    def _require_enough(self, name: str, stream: TokenStream) -> None:
        if stream.num_tokens < self.sequence_length:
            raise UserError(
                f"source {name} has {stream.num_tokens:,} tokens to train on, fewer than one sequence of "
                f"{self.sequence_length:,}; lower sequence_length or val_fraction, or drop the source"
            )

    def _open(self) -> "_Started":
        if self._started is None:
            raise UserError("the data was read before start(seed=..., first_batch=...) was called; call it first")
        return self._started


class _By(NamedTuple):
    seed: int
    first_batch: int
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True)
class _Started:
    """What follows from the seed and the rank."""

    streams: Mapping[str, TokenStream]
    mixture: Mixture
    rows: Mapping[str, Rows]
    by: _By


class TokenBatches:
    """Global batch g, or this rank's slice of it, by its number.

    Args:
        mixture: which source each row is of.
        rows: of each source.
        sequence_length: tokens of a row.
        batch_size: rows of a global batch.
        rank: which slice.
        num_ranks: of how many.
        begins: the number of the mixture's first batch.
    """

    def __init__(
        self,
        mixture: Mixture,
        rows: Mapping[str, Rows],
        sequence_length: int,
        batch_size: int,
        rank: int,
        num_ranks: int,
        begins: int = 0,
    ) -> None:
        self._mixture, self._rows, self._size, self._begins = mixture, list(rows.items()), sequence_length, begins
        self._batch_size, self._share, self._rank = batch_size, batch_size // num_ranks, rank

    def __getitem__(self, index: int) -> Loaded:
        first = (index - self._begins) * self._batch_size + self._rank * self._share
        turns = [self._mixture.turn(row) for row in range(first, first + self._share)]
        return batch_of(index, self._rows, turns, self._size), [None] * self._share

    def is_light(self) -> bool:
        """See `ByNumber.is_light`: threads read ahead, since there is nothing to decode."""
        return True

    def max_bytes(self) -> int:
        """See `ByNumber.max_bytes`."""
        return 2 * 8 * self._share * self._size


def batch_of(index: int, rows: list[tuple[str, Rows]], turns: list[tuple[int, int]], size: int) -> TokenBatch:
    """Rows of several sources, each given as (source, number), in this order."""
    tokens_BS, labels_BS = (np.empty((len(turns), size), np.int64) for _ in range(2))
    documents = _read(rows, turns, tokens_BS, labels_BS)
    return TokenBatch(
        index=index,
        keys=tuple(f"{rows[which][0]}-{number:09d}" for which, number in turns),
        weight_B=torch.ones(len(turns)),
        tokens_BS=torch.from_numpy(tokens_BS),
        labels_BS=torch.from_numpy(labels_BS),
        documents=documents,
    )


def _read(
    rows: list[tuple[str, Rows]], turns: list[tuple[int, int]], tokens_BS: Numbers, labels_BS: Numbers
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


class _HeldOut:
    """The same batches at every iteration: one source after another."""

    def __init__(self, rows: Mapping[str, HeldOutRows], size: int, batch_size: int) -> None:
        self._rows, self._size, self._batch_size = list(rows.items()), size, batch_size

    def __iter__(self) -> Iterator[Batch]:
        index, named = 0, [(f"{name}-held-out", rows) for name, rows in self._rows]
        for which, (_, rows) in enumerate(self._rows):
            for first in range(0, rows.num_rows, self._batch_size):
                numbers = range(first, min(first + self._batch_size, rows.num_rows))
                yield batch_of(index, list(named), [(which, number) for number in numbers], self._size)
                index += 1
