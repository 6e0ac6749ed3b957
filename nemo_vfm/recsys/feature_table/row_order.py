"""Computes which samples of a table are trained on, and in which order each epoch has them.

An epoch goes through windows of some row groups each, which are read at once. Only inside of a window are samples
arranged, so memory is bounded. Where any sample stands follows from the seed, the epoch and the sizes alone.

Shape letters: B samples, M samples that are kept.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nemo_vfm.core.seed import derive, generator
from nemo_vfm.data.tokens.memo import Memo
from nemo_vfm.sparse.jagged import run_begins
from nemo_vfm.sparse.row_fingerprint import mix64_

#: `clustered` keeps blocks of sessions together and shuffles blocks; `shuffled` draws samples; `log` leaves all; `time`
#: is that of `TimeOrder`.
Order = Literal["clustered", "shuffled", "log", "time"]


class WindowId(NamedTuple):
    """One of the windows of an epoch."""

    epoch: int
    number: int


class RowOrder:
    """The endless order of the samples that are trained on.

    Args:
        sizes: how many samples of each row group are trained on.
        seed: of the order.
        order: see `Order`.
        window_groups: row groups of a window.
        block_rows: about how many samples of consecutive sessions make a block of `clustered`.
    """

    def __init__(self, sizes: Sequence[int], *, seed: int, order: Order, window_groups: int, block_rows: int) -> None:
        self._sizes, self._seed, self._order = sizes, seed, order
        self._window_groups, self._block_rows = window_groups, block_rows
        self._epochs: Memo[_Epoch] = Memo(2)
        self.num_samples = sum(sizes)  #: of an epoch

    def spans(self, first: int, count: int) -> list[tuple[WindowId, int, int]]:
        """Samples first .. first + count since the start of training, as windows and ranges of their samples."""
        return spans(first, count, self.num_samples, lambda epoch: self._epochs.get(epoch, self._epoch).borders)

    def row_groups(self, window: WindowId) -> tuple[int, ...]:
        """The row groups of a window."""
        return self._epochs.get(window.epoch, self._epoch).windows[window.number]

    def following(self, window: WindowId) -> WindowId:
        """The next window, maybe of the next epoch."""
        last = window.number + 1 == len(self._epochs.get(window.epoch, self._epoch).windows)
        return WindowId(window.epoch + 1, 0) if last else WindowId(window.epoch, window.number + 1)

    def arrange(self, window: WindowId, kept_M: Tensor, session_B: Tensor) -> Tensor:
        """The samples of a window in the order of training: positions in its row groups, as they lie in `kept_M`.

        Args:
            kept_M: positions of the samples that are trained on, ascending.
            session_B: the session of each sample of its row groups.
        """
        if self._order == "log":
            return kept_M
        numbers = generator(self._seed, "samples", *window)
        if self._order == "shuffled":
            return kept_M[torch.randperm(len(kept_M), generator=numbers)]
        # The block of each sample: sessions that begin in the same `block_rows` samples share one.
        session_M = session_B[kept_M]
        position_M = torch.arange(len(session_M))
        begin_M = torch.where(run_begins(session_M), position_M, 0).cummax(0).values
        block_M = begin_M // self._block_rows
        place = torch.randperm(int(block_M[-1]) + 1, generator=numbers)
        return kept_M[torch.argsort(place[block_M], stable=True)]

    def _epoch(self, epoch: int) -> "_Epoch":
        """Row groups without any sample to train on are in no window."""
        groups = [group for group, size in enumerate(self._sizes) if size]
        if self._order != "log":
            numbers = generator(self._seed, "row groups", epoch)
            groups = [groups[n] for n in torch.randperm(len(groups), generator=numbers).tolist()]
        firsts = range(0, len(groups), self._window_groups)
        windows = [tuple(groups[first : first + self._window_groups]) for first in firsts]
        sizes = (sum(self._sizes[group] for group in window) for window in windows)
        return _Epoch(windows, list(itertools.accumulate(sizes, initial=0)))


class _Epoch(NamedTuple):
    windows: list[tuple[int, ...]]  #: the row groups of each
    borders: list[int]  #: where each begins, and the last one ends


def spans(
    first: int, count: int, num_samples: int, borders_of: Callable[[int], Sequence[int]]
) -> list[tuple[WindowId, int, int]]:
    """Samples first .. first + count of endless epochs, as windows and ranges of their samples.

    Args:
        borders_of: where each window of an epoch begins, and the last one ends.
    """
    found = []
    while count:
        epoch, place = divmod(first, num_samples)
        borders = borders_of(epoch)
        number = bisect.bisect_right(borders, place) - 1
        begin = place - borders[number]
        taken = min(count, borders[number + 1] - place)
        found.append((WindowId(epoch, number), begin, begin + taken))
        first, count = first + taken, count - taken
    return found


def held_out(session_B: Tensor, seed: int, fraction: float) -> Tensor:
    """Whether each sample's session is held out, a function of the session and the seed alone: bool, B."""
    if not fraction:
        return torch.zeros_like(session_B, dtype=torch.bool)
    salt = derive(seed, "held out")
    hashed_B = mix64_(mix64_(session_B.clone()).add_(salt))
    return (hashed_B >> 11).bitwise_and((1 << 53) - 1).to(torch.float64) < fraction * 2.0**53
