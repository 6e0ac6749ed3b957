"""Calls the collectives of context parallelism and counts their bytes. No other file of this room calls any.

If a rank dies or hangs, a call raises `LostRank`, which names it, within the group's timeout. That is for gloo; NCCL's
own watchdog ends the process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup, Work

from nemo_vfm.core.errors import LostRank
from nemo_vfm.core.sanitize import beginning


@dataclass
class Traffic:
    """Bytes that this rank handed to its process groups for others: in all, and by kind of call."""

    sent: int = 0
    by_call: dict[str, int] = field(default_factory=dict)


_COUNTING: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what this process sends for context parallelism while the block runs, its backward passes included."""
    traffic = Traffic()
    _COUNTING.append(traffic)
    try:
        yield traffic
    finally:
        _COUNTING.remove(traffic)


@dataclass(frozen=True)
class Team:
    """Ranks that work on something together: a whole process group or some of it, in an order of their own."""

    group: ProcessGroup  #: the process group, whose calls carry everything
    members: tuple[int, ...]  #: ranks inside the group; this process is one of them

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.members)

    @property
    def index(self) -> int:
        """This process's place among them."""
        return self.members.index(self.group.rank())

    def name(self, *indices: int) -> str:
        """Members as the user knows them: by their ranks in the whole run."""
        ranks = [str(dist.get_global_rank(self.group, self.members[index])) for index in indices]
        return f"rank {' or '.join(ranks)}"

    def others(self) -> str:
        """All but this one, by name."""
        return self.name(*(index for index in range(self.size) if index != self.index))


def everyone(group: ProcessGroup) -> Team:
    """The team of all ranks of a group."""
    return Team(group, tuple(range(group.size())))


class PendingTransfers:
    """Sends and receives that are under way. Buffers live as long as this does."""

    def __init__(self, team: Team, works: Sequence[tuple[int, Work]], buffers: Sequence[Tensor]) -> None:
        self._team, self._works, self._buffers = team, works, buffers

    def wait(self) -> None:
        """Return when what was received may be read and what was sent may be changed."""
        for index, work in self._works:
            with _name_peers_in_errors(self._team, self._team.name(index)):
                work.wait()
        self._works = ()


def exchange(team: Team, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> PendingTransfers:
    """Start to send a tensor to each named member and to receive one from each. Both sides call in the same order."""
    for tensor in (*sends.values(), *receives.values()):
        assert tensor.is_contiguous(), "a message is one run of memory"
    if not sends and not receives:
        return PendingTransfers(team, (), ())
    _count("exchange", sum(tensor.nbytes for tensor in sends.values()))
    peers = [*sends, *receives]
    calls = [
        *(P2POp(dist.isend, x, group=team.group, group_peer=team.members[i]) for i, x in sends.items()),
        *(P2POp(dist.irecv, x, group=team.group, group_peer=team.members[i]) for i, x in receives.items()),
    ]
    with _name_peers_in_errors(team, team.name(*dict.fromkeys(peers))):
        works = dist.batch_isend_irecv(calls)
    # NCCL answers with one work for all of a batch, gloo with one each.
    return PendingTransfers(team, list(zip(peers, works, strict=False)), [*sends.values(), *receives.values()])


def all_gather(team: Team, own: Tensor) -> Tensor:
    """Every rank's tensor, stacked by rank. The team is a whole group."""
    assert team.size == team.group.size(), "a collective needs a whole group"
    found = own.new_empty(team.size, *own.shape)
    _count("all_gather", own.nbytes * (team.size - 1))
    with _name_peers_in_errors(team, team.others()):
        _torch("all_gather_single", "all_gather_into_tensor")(found, own.contiguous().unsqueeze(0), group=team.group)
    return found


def reduce_scatter(team: Team, parts: Tensor) -> Tensor:
    """The sum over the ranks of `parts[own place]`. The team is a whole group."""
    assert team.size == team.group.size() == parts.shape[0], "a collective needs a whole group"
    found = parts.new_empty(1, *parts.shape[1:])
    _count("reduce_scatter", parts.nbytes // team.size * (team.size - 1))
    with _name_peers_in_errors(team, team.others()):
        _torch("reduce_scatter_single", "reduce_scatter_tensor")(found, parts.contiguous(), group=team.group)
    return found[0]


def _torch(name: str, before: str) -> Callable[..., object]:
    """One of torch's collectives by its new name where it has one: since 2.13 the old ones warn."""
    found: Callable[..., object] = getattr(dist, name, None) or getattr(dist, before)
    return found


def _count(call: str, sent: int) -> None:
    for traffic in _COUNTING:
        traffic.sent += sent
        traffic.by_call[call] = traffic.by_call.get(call, 0) + sent


@contextmanager
def _name_peers_in_errors(team: Team, peer: str) -> Iterator[None]:
    """A failed call as a sentence that says who waited for whom."""
    try:
        yield
    except RuntimeError as error:
        raise LostRank(
            f"{team.name(team.index)} timed out waiting for {peer}, with which it shares a sequence over "
            f"{team.size} "
            f"ranks: {beginning(error)}. {peer[0].upper()}{peer[1:]} has stopped, hangs, or is "
            f"waiting itself; the log of the rank that ended first has the reason"
        ) from error
