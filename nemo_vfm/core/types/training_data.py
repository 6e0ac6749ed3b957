"""Declares training data: batches in an order that depends on the seed alone, and its read position."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json


@runtime_checkable
class TrainingData(Protocol):
    """Where training gets its batches; the order is a pure function of the seed."""

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """Open the data and be ready to give global batch `first_batch` first: of each, slice `rank` of `num_ranks`."""
        ...

    def train_dataloader(self) -> Iterable[Batch]:
        """Batches first_batch, first_batch + 1, ... without end."""
        ...

    def val_dataloader(self) -> Iterable[Batch]:
        """The same held-out batches at every call; none where nothing is held out."""
        ...

    def batches_per_epoch(self) -> float:
        """How many global batches see every training sample once."""
        ...

    def num_train_samples(self) -> int:
        """How many samples are trained on."""
        ...


class ReadPosition(NamedTuple):
    """How far one part of the data, such as a bucket or a source, is read.

    Args:
        place: samples read since the start of training, epoch after epoch.
        of: samples of its epoch; 0 if unknown.
        order: a hash of which samples these are, and in which order they come.
    """

    place: int
    of: int
    order: str


@runtime_checkable
class ResumableData(TrainingData, Protocol):
    """Training data that resumes at the exact sample, also with other batches."""

    def begins(self) -> int:
        """The number of its first global batch: 0, or what `starting` was given."""
        ...

    def position(self, index: int) -> Mapping[str, ReadPosition]:
        """How far each part is read before global batch `index`; once it is started."""
        ...

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """A copy to be started, whose global batch `first_batch` follows so many samples of each part."""
        ...

    def batching(self) -> "Json":
        """What decides which of its samples share a batch, such as batch sizes and weights; once it is started."""
        ...

    def with_batching(self, batching: "Json") -> Self:
        """A copy to be started, with the batches that `batching` once told.

        Raises:
            ValueError: these were batches of other data.
        """
        ...


@runtime_checkable
class ResumablePhases(ResumableData, Protocol):
    """Training data that resumes at its position with other batches, or another blend of its sources."""

    def samples_per_batch(self) -> int:
        """Of a global batch; known from the recipe alone."""
        ...

    def tokens_per_sample(self) -> int:
        """Known from the recipe alone."""
        ...

    def in_phase(self, *, batch_size: int | None, blend: Mapping[str, float] | None, read: Mapping[str, int]) -> Self:
        """The same data with other batches or weights of sources (None: its own), after so many samples of each source.

        Raises:
            ValueError: a weight for a source that there is not.
        """
        ...

    def read_after(self, batches: int, *, seed: int) -> Mapping[str, int]:
        """Samples of each source that are read once so many batches are, with those before the first."""
        ...


@runtime_checkable
class HasVocab(Protocol):
    """Training data of tokens."""

    def vocab_size(self) -> int:
        """How many tokens there may be; once it is started."""
        ...


@runtime_checkable
class HasBatchSizes(Protocol):
    """Training data whose global batches are known from the recipe alone."""

    def batch_sizes(self) -> Mapping[str, int]:
        """`{where it is written: samples of a global batch}`."""
        ...


@runtime_checkable
class HasColumns(Protocol):
    """Training data whose batches have parts with names of their own, such as features of a log."""

    def no_samples(self) -> Batch:
        """A batch without samples that has all parts; before it is started."""
        ...


@runtime_checkable
class HasTableRows(Protocol):
    """Training data whose ids are rows of embedding tables of known sizes."""

    def is_written(self) -> bool:
        """Whether it is there, or an earlier step has still to write it; before it is started."""
        ...

    def table_rows(self) -> Mapping[str, int]:
        """Of each feature the rows of its table; before it is started.

        Raises:
            UserError: they are not known, or not yet.
        """
        ...


@runtime_checkable
class HasTimeWindows(Protocol):
    """Training data in order of time, cut into windows, each of which may be measured before it is trained on."""

    def has_time_windows(self) -> bool:
        """Whether it is; known from the recipe alone."""
        ...

    def ends_time_window(self, index: int) -> bool:
        """Whether global batch `index` has the last sample of a window; once it is started."""
        ...

    def rest_of_time_window(self, index: int) -> Iterable[Batch]:
        """The samples that follow global batch `index`, up to the end of a window; none after the last window."""
        ...


def sources_in(data: Any, at: tuple[str, ...] = ("data",)) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """A source of training data with its address in a recipe, and those that it packs or blends."""
    yield data, at
    packed, sources = getattr(data, "data", None), getattr(data, "sources", None)
    if isinstance(packed, TrainingData):  # the data of a user may hold anything by these names
        yield from sources_in(packed, (*at, "data"))
    for name, source in sources.items() if isinstance(sources, Mapping) else ():
        yield from sources_in(getattr(source, "data", None), (*at, "sources", name, "data"))


@runtime_checkable
class LightningData(Protocol):
    """A LightningDataModule whose loaders give `nemo_vfm.core.types.batch.Batch`: whole global batches."""

    def prepare_data(self) -> None:
        """Called on rank 0, before the others go on."""
        ...

    def setup(self, stage: str) -> None:
        """Called on every rank."""
        ...

    def train_dataloader(self) -> Iterable[Batch]:
        """One epoch at each iteration."""
        ...

    def val_dataloader(self) -> Iterable[Batch]:
        """The held-out batches."""
        ...
