# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of this rank in, the bytes of every rank of its group out: the one collective that loading data needs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from nemo_vfm.core.errors import LostRank

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Gather(Protocol):
    """Ranks that exchange bytes. Every rank must call in the same order, so one thread of each does all calls."""

    def rank(self) -> int:
        """This rank's place in the group."""
        ...

    def num_ranks(self) -> int:
        """How many there are."""
        ...

    def all_gather(self, data: bytes) -> Sequence[memoryview]:
        """Every rank's bytes, by rank; they may differ in length. LostRank where a rank does not answer."""
        ...


class GroupGather:
    """Exchanges bytes over a process group that lies on the CPU (gloo).

    The group should be its own: a collective of another thread on the same group would come between. A rank that dies
    or hangs is noticed by the group's timeout, which is given where the group is made; it should be longer than the
    slowest read.

    Args:
        group: such as `torch.distributed.new_group(ranks, backend="gloo", timeout=...)` gave.
    """

    def __init__(self, group: "ProcessGroup") -> None:
        self._group = group

    def rank(self) -> int:
        """See `Gather.rank`."""
        return self._group.rank()

    def num_ranks(self) -> int:
        """See `Gather.num_ranks`."""
        return self._group.size()

    def all_gather(self, data: bytes) -> list[memoryview]:
        """See `Gather.all_gather`: the lengths first, then the bytes, filled up to the longest.

        Raises:
            LostRank: another rank died, hangs, or is not in the same call.
        """
        try:
            return self._all_gather(data)
        except RuntimeError as error:
            raise LostRank(
                f"rank {self.rank()} of {self.num_ranks()} that share their data waited for the others in vain: "
                f"{' '.join(str(error).split())[:200]}. Another rank has stopped or hangs; its own last words say why"
            ) from error

    def _all_gather(self, data: bytes) -> list[memoryview]:
        lengths = self._gathered(torch.tensor([len(data)], dtype=torch.int64)).tolist()
        longest = max(lengths)
        own = torch.zeros(longest, dtype=torch.uint8)
        own.numpy()[: len(data)] = np.frombuffer(data, np.uint8)
        rows = self._gathered(own).numpy().data.cast("B")
        return [rows[rank * longest : rank * longest + length] for rank, length in enumerate(lengths)]

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        everyone = torch.empty(own.numel() * self.num_ranks(), dtype=own.dtype)
        if own.numel():
            torch.distributed.all_gather_into_tensor(everyone, own, group=self._group)
        return everyone
