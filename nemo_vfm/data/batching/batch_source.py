"""Declares the source of batches by number, which prefetching needs of any data: a batch and its faults."""

from typing import Protocol

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.data.batching.faults import Fault

#: A batch, and what was wrong with each sample.
Loaded = tuple[Batch, list[Fault | None]]


class ByNumber(Protocol):
    """One rank's part of global batch g, by its number; may be sent to another process."""

    def __getitem__(self, index: int) -> Loaded:
        """The batch and what was wrong with each sample."""
        ...

    def is_light(self) -> bool:
        """See `Loading.is_light`."""
        ...

    def max_bytes(self) -> int:
        """What the largest batch fills."""
        ...
