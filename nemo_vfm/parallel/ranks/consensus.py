"""Agrees on one decision across all ranks. Ranks must decide collectively, or they deadlock.

In a single process, or before the ranks have met, each function returns its argument.
"""

import re
from collections.abc import Sequence

import torch
import torch.distributed as dist

from nemo_vfm.core.errors import LostRank
from nemo_vfm.parallel.ranks.gather import GroupGather
from nemo_vfm.parallel.ranks.process_group import current

_OF_A_COLLECTIVE = re.compile(r"gloo|NCCL|Connection closed by peer|Connection reset by peer", re.IGNORECASE)


def greatest(*numbers: float) -> tuple[float, ...]:
    """The greatest of each number over all ranks: one all-reduce of a few bytes on the CPU.

    Raises:
        LostRank: another rank died or does not answer.
    """
    if not _several():
        return numbers
    found = torch.tensor(numbers, dtype=torch.float64)
    try:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    except RuntimeError as error:
        raise lost(error) from error
    return tuple(found.tolist())


def first_says(text: str) -> str:
    """Rank 0's text, on every rank.

    Raises:
        LostRank: another rank died or does not answer.
    """
    return everyone_says(text)[0]


def everyone_says(text: str) -> list[str]:
    """Every rank's text, by rank.

    Raises:
        LostRank: another rank died or does not answer.
    """
    return [bytes(row).decode() for row in everyone_sends(text.encode())]


def everyone_sends(data: bytes) -> "Sequence[bytes | memoryview]":
    """Every rank's bytes, by rank.

    Raises:
        LostRank: another rank died or does not answer.
    """
    if not _several():
        return [data]
    world = dist.group.WORLD
    assert world is not None
    return GroupGather(world).all_gather(data)


def lost(error: BaseException) -> LostRank:
    """Turn a collective's error into one that names the lost rank, if rank 0 knows it."""
    world = current()
    known = world.why_lost() if world is not None and dist.get_rank() == 0 else None
    if known is not None:
        return LostRank(f"{known}. Run the same command again to resume from the last checkpoint")
    return LostRank(
        f"rank {dist.get_rank()} of {dist.get_world_size()} timed out waiting for the others ({_brief(error)}). "
        f"Another rank died or hangs; see the end of its "
        f"log. Run the same command again to resume from the last checkpoint"
    )


def _brief(error: BaseException) -> str:
    """What a collective says, without the place in its source and its advice."""
    text = re.sub(r"^\[[^\]]*\.\w+:\d+\] *", "", " ".join(str(error).split()))
    return text.partition(". ")[0][:200]


def lost_behind(error: BaseException) -> LostRank | None:
    """What an exception is where it comes from a collective whose peers are gone; None where it is something else."""
    if not _several() or isinstance(error, LostRank) or not isinstance(error, RuntimeError):
        return None
    return lost(error) if isinstance(error, dist.DistError) or _OF_A_COLLECTIVE.search(str(error)) else None


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
