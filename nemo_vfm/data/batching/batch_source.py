"""Declares the two halves of training data: a schedule says which samples are in a batch, a reader reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, Self, TypeVar

from torch.utils.data import Dataset

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.faults import Fault

#: A batch, and what was wrong with each sample.
Loaded = tuple[Batch, list[Fault | None]]

#: Which samples: what a schedule says of a slice of a batch, and its reader understands. Small, and can be pickled.
Which = TypeVar("Which")
Which_co = TypeVar("Which_co", covariant=True)
Which_contra = TypeVar("Which_contra", contravariant=True)


class BatchSchedule(Protocol[Which_co]):
    """Which samples are in global batch g: a pure function of the seed and g. It reads nothing, and can be pickled."""

    @property
    def batches_per_epoch(self) -> Fraction | float:
        """See `TrainingData.batches_per_epoch`."""
        ...

    @property
    def batch_size(self) -> Fraction | float:
        """Samples of a global batch, on average."""
        ...

    def samples(self, index: int, rank: int, num_ranks: int) -> Which_co:
        """Slice `rank` of `num_ranks` of global batch `index`."""
        ...

    def largest(self, num_ranks: int) -> Iterable[Which_co]:
        """Slices, among them the one that fills most."""
        ...

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`."""
        ...

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        """The same order, whose batch `first`, now the first one, follows so many samples of each part."""
        ...


class SampleReader(Protocol[Which_contra]):
    """Reads the samples of a slice, wherever they lie; may be sent to another process."""

    is_light: bool  #: whether reading is mostly waiting and copying, so that threads do; decoding wants processes

    def read(self, index: int, samples: Which_contra) -> Loaded:
        """They as batch `index`. A sample that cannot be read keeps its place with weight 0, and is a fault."""
        ...

    def num_bytes(self, samples: Which_contra) -> int:
        """What they fill in a batch; from the index alone."""
        ...


@dataclass(eq=False)
class ScheduledBatches(Dataset[Loaded], Generic[Which]):
    """One rank's slice of global batch g, by its number; may be sent to another process."""

    schedule: BatchSchedule[Which]
    reader: SampleReader[Which]
    rank: int = 0
    num_ranks: int = 1

    def __getitem__(self, index: int) -> Loaded:
        return self.reader.read(index, self.schedule.samples(index, self.rank, self.num_ranks))

    def max_bytes(self) -> int:
        """What the largest batch fills."""
        return max(map(self.reader.num_bytes, self.schedule.largest(self.num_ranks)))


@dataclass(slots=True)
class ReadTraffic:
    """What this rank moved."""

    fetched: int = 0  #: bytes asked of the storage as its share
    gathered: int = 0  #: bytes received from the other ranks
    alone: int = 0  #: bytes asked of the storage beside the plan; 0 where the plan knows all that is read
    batches: int = 0  #: exchanged

    def __str__(self) -> str:
        return (
            f"{self.batches} batches: {self.fetched:,} bytes fetched from storage, {self.gathered:,} gathered from "
            f"other ranks, {self.alone:,} read alone"
        )
