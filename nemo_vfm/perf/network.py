"""Estimates the seconds of an exchange from the links between GPUs and the ranks that take part.

Ranks are counted as in `parallel/plan/plan.py`: a group's members are `stride` ranks apart. A ring over several
machines passes each byte over every border, and may use the links of all its members in a machine for it at once. So
its rate is that of the links inside, or of so many links outward, whichever is less. Neighbours in a ring of sends have
one link.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one GPU can send, while it receives as much.

    Args:
        gb_per_s: by the data sheet, in 10^9 bytes a second and one direction.
        share: of it that collectives reach, from 0 to 1.
        latency_us: of one message, in microseconds.
    """

    gb_per_s: float
    share: float = 0.8
    latency_us: float = 5.0

    def __post_init__(self) -> None:
        if self.gb_per_s <= 0 or not 0 < self.share <= 1 or self.latency_us < 0:
            raise ValueError(
                f"a link needs gb_per_s above 0, share in 0..1 and latency_us of at least 0, got {self.gb_per_s}, "
                f"{self.share} and {self.latency_us}"
            )

    @property
    def bytes_per_s(self) -> float:
        """What collectives reach."""
        return self.gb_per_s * 1e9 * self.share


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that exchange something."""

    size: int  #: how many
    stride: int = 1  #: ranks from one member to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Machines with a number of GPUs, and the links inside and between them.

    Args:
        gpus_per_node: GPUs that the links inside join: of a machine, or of a rack that is one.
        inside: of a GPU to others of its machine.
        between: of a GPU to other machines: its part of all network cards of its machine.
        host: of a GPU to its machine's own memory.
    """

    gpus_per_node: int
    inside: Link
    between: Link
    host: Link

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise ValueError(f"gpus_per_node must be at least 1, got {self.gpus_per_node}")

    def gather_s(self, num_bytes: float, group: RankGroup) -> float:
        """An all-gather of so many bytes, counted whole; a reduce-scatter takes as long."""
        if group.size == 1:
            return 0.0
        moved, near = num_bytes * (group.size - 1) / group.size, self.members_inside(group)
        rate, outward = self.inside.bytes_per_s, near * self.between.bytes_per_s
        if near < group.size:
            rate = outward if near == 1 else min(rate, outward)
        return moved / rate + self._latency_s(group)

    def reduce_s(self, num_bytes: float, group: RankGroup) -> float:
        """An all-reduce: a reduce-scatter, then an all-gather."""
        return 2 * self.gather_s(num_bytes, group)

    def exchange_s(self, sent: float, group: RankGroup) -> float:
        """An all-to-all in which each member sends so many bytes in all, as many to each other one."""
        if group.size == 1:
            return 0.0
        near = self.members_inside(group)
        outward = sent * (group.size - near) / (group.size - 1)
        slower = max((sent - outward) / self.inside.bytes_per_s, outward / self.between.bytes_per_s)
        return slower + self._latency_s(group)

    def send_s(self, num_bytes: float, group: RankGroup) -> float:
        """Each member sends so many bytes to the next, all at once."""
        if group.size == 1:
            return 0.0
        link = self.inside if self.members_inside(group) == group.size else self.between
        return num_bytes / link.bytes_per_s + link.latency_us * 1e-6

    def members_inside(self, group: RankGroup) -> int:
        """Members of a group that share a machine."""
        return max(1, min(group.size, self.gpus_per_node // group.stride))

    def _latency_s(self, group: RankGroup) -> float:
        """A tree inside the machine, then a ring that passes each machine once: what thousands of GPUs wait for."""
        near = self.members_inside(group)
        beyond = math.ceil(group.size / near) - 1
        return (math.ceil(math.log2(near)) * self.inside.latency_us + beyond * self.between.latency_us) * 1e-6
