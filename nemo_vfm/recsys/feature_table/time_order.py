"""Reads the samples of a table in the order of their times, some row groups' worth at once.

Samples of one session lie together in a table, so those of one time lie apart: what is read at once may be spread over
all row groups. Shape letters: B samples of a row group, M samples that are trained on, N all of these.
"""

import bisect
import itertools
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from nemo_vfm.core.log import warn
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.recsys.feature_table.row_order import WindowId, spans
from nemo_vfm.recsys.feature_table.table_splits import TrainedRows
from nemo_vfm.recsys.feature_table.table_window import TableWindow, WindowReader, join_batches

_OFTEN = 4  # an epoch that reads each row group more often than this is slow, and says so


class _Key(NamedTuple):
    """Where a sample stands among all: equal times are in the order of the table."""

    time: int
    place: int


class TimeOrder:
    """The endless order of the samples that are trained on; every epoch has the same.

    Args:
        reader: reads row groups. While this is made, about 40 bytes a sample are held.
        rows: which samples.
        window_groups: how many row groups hold as many samples as are read at once.
        time_window: how long a window of time lasts; None makes the epoch one.
    """

    def __init__(
        self, reader: WindowReader, rows: TrainedRows, *, window_groups: int, time_window: int | None
    ) -> None:  # fmt: skip
        self._reader, self._rows, self._borders_B = reader, rows, reader.table.row_groups
        times, places = zip(
            *(self._training_samples(number) for number in range(len(self._borders_B) - 1)), strict=True
        )
        self._ranges = [(int(time_M.min()), int(time_M.max())) if len(time_M) else None for time_M in times]
        order_N = torch.cat(times).argsort(stable=True)
        time_N, place_N = torch.cat(times)[order_N], torch.cat(places)[order_N]
        self.num_samples = len(time_N)  #: of an epoch
        step = window_groups * max(end - begin for begin, end in itertools.pairwise(self._borders_B))
        firsts = range(0, self.num_samples, step)
        self._borders = [*firsts, self.num_samples]
        self._keys = [_Key(int(time_N[first]), int(place_N[first])) for first in firsts]
        # How many samples come up to the end of each window of time that has any.
        window_N = (time_N - time_N[:1]) // time_window if time_window else torch.zeros_like(time_N)
        self._time_borders: list[int] = [*(torch.diff(window_N).nonzero().squeeze(1) + 1).tolist(), len(time_N)]
        groups = len(self._borders_B) - 1
        often = sum(len(self._row_groups(number)) for number in range(len(self._keys))) / groups
        if often > _OFTEN:
            warn(
                f"samples of the same time are far apart in {self._reader.table.folder}, so an epoch reads each row "
                f"group {often:.0f} times; a larger data.window_groups uses more memory and reads less"
            )

    def spans(self, first: int, count: int) -> list[tuple[WindowId, int, int]]:
        """See `RowOrder.spans`."""
        return spans(first, count, self.num_samples, lambda _: self._borders)

    def following(self, window: WindowId) -> WindowId:
        last = window.number + 1 == len(self._keys)
        return WindowId(window.epoch + 1, 0) if last else WindowId(window.epoch, window.number + 1)

    def window_end(self, place: int) -> int:
        """Where the window of time ends that has the sample at `place` of the epoch."""
        return self._time_borders[bisect.bisect_right(self._time_borders, place)]

    def read(self, window: WindowId) -> TableWindow:
        """The samples of a window, by time.

        Raises:
            DataError: see `WindowReader.window`.
        """
        parts, times, faults, size = [], list[Tensor](), dict[int, Fault](), 0
        for number in self._row_groups(window.number):
            time_M, place_M = self._training_samples(number)
            inside_M = torch.ones_like(time_M, dtype=torch.bool)
            for key, is_end in zip(self._keys[window.number : window.number + 2], (False, True), strict=False):
                before_M = (time_M < key.time) | ((time_M == key.time) & (place_M < key.place))
                inside_M &= before_M if is_end else ~before_M
            inside_M = inside_M.nonzero().squeeze(1)
            if len(inside_M):
                row_M = place_M[inside_M] - self._borders_B[number]
                stored = self._reader.load_row_groups([number])
                found = self._reader.window(stored, row_M)
                batch = found.batch.rows(0, len(row_M))  # without the unique rows of other samples
                parts.append(replace(batch, session_B=stored.samples.session_B[row_M]))
                times.append(time_M[inside_M])
                faults |= {size + place: fault for place, fault in found.faults.items()}
                size += len(row_M)
        order_M = torch.cat(times).argsort(stable=True)
        place_M = order_M.argsort()
        return TableWindow(
            join_batches(parts, 0).select(order_M), {int(place_M[place]): fault for place, fault in faults.items()}
        )

    def _training_samples(self, row_group: int) -> tuple[Tensor, Tensor]:
        """Times and places in the table of the samples of a row group that are trained on: int64, (M,) each."""
        kept_M = self._rows.of(row_group).nonzero().squeeze(1)
        return self._rows.table.numbers(row_group, "time")[kept_M], kept_M + self._borders_B[row_group]

    def _row_groups(self, number: int) -> list[int]:
        """Those with samples of the times of a window, or maybe so at its ends."""
        begin, *ends = (key.time for key in self._keys[number : number + 2])
        ranges = [(group, *times) for group, times in enumerate(self._ranges) if times is not None]
        return [group for group, low, high in ranges if high >= begin and all(low <= end for end in ends)]
