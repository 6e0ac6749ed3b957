"""Makes training data of a schedule and a reader: starting, resuming, reading ahead and validation, for any of them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import ClassVar, Generic, Self

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import BatchSchedule, SampleReader, ScheduledBatches, Which
from nemo_vfm.data.batching.faults import Faults


class ScheduledData(ABC, Generic[Which]):
    """Training data that resumes at the exact sample, after any position of its parts: see `ResumableData`.

    Each kind takes its own settings, and says in `open` which samples are in a batch and how they are read.

    Args:
        num_workers: how many read ahead on each rank; 0 reads when asked.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: see `Batches`.
    """

    size_name: ClassVar[str] = "batch_size"  #: the argument that says how large a global batch is
    timeout_s: ClassVar[float | None] = 600.0  #: a worker silent for longer than this stops the run

    def __init__(
        self, *, num_workers: int, max_bad_in_a_row: int, max_ahead_gb: float = 4.0,
        max_memory_share: float | None = None,
    ) -> None:  # fmt: skip
        if max_memory_share is not None and not 0 < max_memory_share <= 1:
            raise ValueError(f"max_memory_share must be above 0 and at most 1, or None, got {max_memory_share}")
        self._begins, self._places, self._first_batch = 0, dict[str, int](), 0
        self._started: ScheduledBatches[Which] | None = None
        self.num_workers, self.max_bad_in_a_row = num_workers, max_bad_in_a_row
        self.max_ahead_gb, self.max_memory_share = max_ahead_gb, max_memory_share
        self.faults = Faults(max_in_a_row=max_bad_in_a_row)  #: bad samples met so far

    @abstractmethod
    def open(self, seed: int) -> tuple[BatchSchedule[Which], SampleReader[Which]]:
        """The schedule from its very beginning, and a reader of its samples."""

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`; here nothing is held out."""
        return ()

    def read_in_order(self, reader: SampleReader[Which], slices: Iterable[Which]) -> Iterator[Batch]:
        """Held-out batches one by one; their bad samples are counted apart from those of training."""
        faults = Faults(max_in_a_row=self.max_bad_in_a_row)
        for index, samples in enumerate(slices):
            batch, found = reader.read(index, samples)
            faults.count(found)
            yield batch

    def require_divisible(self, num_ranks: int) -> None:
        """UserError where a global batch cannot be divided among so many data ranks."""
        if (size := getattr(self, self.size_name)) % num_ranks:
            raise UserError(f"{self.size_name} {size} is not divisible by {num_ranks} ranks")

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`."""
        return {self.size_name: getattr(self, self.size_name)}

    def begins(self) -> int:
        """See `ResumableData`."""
        return self._begins

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """See `ResumableData`."""
        found = copy.copy(self)
        found._begins, found._places, found._started = first_batch, dict(places), None
        return found

    def batching(self) -> Json:
        """See `ResumableData`."""
        return {self.size_name: getattr(self, self.size_name)}

    def with_batching(self, batching: Json) -> Self:
        """See `ResumableData`."""
        found = self.starting(self._begins, self._places)
        setattr(found, self.size_name, batching[self.size_name])
        return found

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`; `rank` of `num_ranks` data-parallel ranks gets its slice of every batch.

        Raises:
            UserError: there is nothing to train on, or a batch cannot be divided among the ranks.
            DataError: what is read is damaged.
        """
        assert first_batch >= self._begins, f"batch {first_batch} is before the first, {self._begins}"
        self.require_divisible(num_ranks)
        schedule, reader = self.open(seed)
        self._first_batch = first_batch
        self._started = ScheduledBatches(schedule.at(self._begins, self._places), reader, rank, num_ranks)

    def by_number(self) -> ScheduledBatches[Which]:
        """This rank's batches; once it is started."""
        if self._started is None:
            raise UserError("the data was read before start(seed=..., first_batch=...) was called; call it first")
        return self._started

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`."""
        from nemo_vfm.data.loader.batch_loader import Batches

        return Batches(
            self.by_number(), first=self._first_batch, num_workers=self.num_workers, faults=self.faults,
            max_ahead_bytes=int(self.max_ahead_gb * 1e9),
            timeout_s=self.timeout_s, max_memory_share=self.max_memory_share,
        )  # fmt: skip

    def batches_per_epoch(self) -> float:
        """See `TrainingData.batches_per_epoch`."""
        return float(self.by_number().schedule.batches_per_epoch)

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`."""
        schedule = self.by_number().schedule
        return round(Fraction(schedule.batches_per_epoch) * Fraction(schedule.batch_size))

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData`."""
        return self.by_number().schedule.position(index)
