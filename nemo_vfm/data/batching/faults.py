"""Counts samples that could not be read; too many in a row stop the run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn


class ShardChanged(DataError):
    """A shard is not the one that was listed: going on would train on other samples than a resume, so the run stops."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A sample that kept its place in the batch with loss weight 0, and why."""

    key: str
    shard: str
    message: str

    def __str__(self) -> str:
        return f"sample {self.key} in {self.shard}: {self.message}"


class Faults:
    """Counts bad samples in the order of training, whichever worker met them.

    `max_in_a_row` of them one after another stop the run: the data is broken, not a sample.
    """

    def __init__(self, *, max_in_a_row: int) -> None:
        if max_in_a_row < 1:
            raise ValueError(f"max_in_a_row must be at least 1, got {max_in_a_row}")
        self._max_in_a_row, self._in_a_row = max_in_a_row, 0
        self.by_sample: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()  # keys of streamed tars are equal in several

    def count(self, found: Sequence[Fault | None]) -> None:
        """Take note of one batch, a fault or None a sample."""
        for fault in found:
            self._in_a_row = 0 if fault is None else self._in_a_row + 1
            if fault is None:
                continue
            if (fault.key, fault.shard) not in self._told:
                self._told.add((fault.key, fault.shard))
                warn(f"{fault}; it is kept with loss weight 0")
            self.by_sample[fault.key] += 1
            if self._in_a_row >= self._max_in_a_row:
                raise DataError(f"{self._in_a_row} bad samples in a row, the last one: {fault}; check the shards")
