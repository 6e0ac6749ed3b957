"""Gathers bytes from every rank of a group: the one collective that data loading needs."""

from typing import TYPE_CHECKING, Any

import torch

from nemo_vfm.core.errors import LostRank
from nemo_vfm.core.sanitize import beginning

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Gather:
    """Ranks that exchange bytes over a process group on the CPU (gloo); a process without one is alone.

    Every rank must call in the same order, so one thread of each does all calls.

    The group should be its own: a collective of another thread on the same group would come between. A rank that dies
    or hangs is noticed by the group's timeout, which is given where the group is made; it should be longer than the
    slowest read.

    Args:
        group: such as `torch.distributed.new_group(ranks, backend="gloo", timeout=...)` gave.
    """

    def __init__(self, group: "ProcessGroup | None" = None) -> None:
        self._group = group

    def rank(self) -> int:
        """This rank's place in the group."""
        return 0 if self._group is None else self._group.rank()

    def num_ranks(self) -> int:
        """How many there are."""
        return 1 if self._group is None else self._group.size()

    def all_gather(self, data: bytes) -> list[memoryview]:
        """Every rank's bytes, by rank: the lengths are sent first, then the bytes, filled up to the longest.

        Raises:
            LostRank: another rank died, hangs, or is not in the same call.
        """
        if self._group is None:
            return [memoryview(data)]
        try:
            lengths = [int.from_bytes(row, "little") for row in self._all_gather(len(data).to_bytes(8, "little"), 8)]
            rows = self._all_gather(data, max(lengths))
            return [row[:length] for row, length in zip(rows, lengths, strict=True)]
        except RuntimeError as error:
            raise LostRank(
                f"rank {self.rank()} of {self.num_ranks()} that share their data timed out waiting for the others: "
                f"{beginning(error)}. Another rank stopped or hangs; see the end of its log"
            ) from error

    def _all_gather(self, data: bytes, longest: int) -> list[memoryview]:
        """Every rank's bytes, filled up with zeros to the same length."""
        if not longest:
            return [memoryview(b"")] * self.num_ranks()
        own, everyone = bytearray(longest), bytearray(longest * self.num_ranks())
        own[: len(data)] = data
        # By its new name where torch has one: since 2.13 the old one warns.
        collective: Any = getattr(torch.distributed, "all_gather_single", torch.distributed.all_gather_into_tensor)
        collective(
            torch.frombuffer(everyone, dtype=torch.uint8), torch.frombuffer(own, dtype=torch.uint8), group=self._group
        )
        rows = memoryview(everyone)
        return [rows[rank * longest : (rank + 1) * longest] for rank in range(self.num_ranks())]
