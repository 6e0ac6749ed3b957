"""Exchanges the results of a step of saving or loading, so that all ranks continue together or all stop.

A rank that raised alone would leave the others waiting in their next collective. So each step of a save or a load tells
all ranks how it went before any of them acts on it. Everything is sent as JSON.
"""

import json
from collections.abc import Callable
from datetime import timedelta

from nemo_vfm.core import errors
from nemo_vfm.core.errors import LostRank, NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.ranks.gather import Gather

#: A rank that died is noticed at once, by its closed connection. This is for one that hangs, and must be longer than
#: the slowest disk takes for a rank's part, or a store for a whole checkpoint.
TIMEOUT = timedelta(hours=2)
_JOINED: dict[str, object] = {}


ALONE = Gather()  #: one process: nobody to wait for


def gather_group() -> Gather:
    """All ranks of this run, over a gloo group of our own; every rank must call this at the same point the first time.

    A group of our own, since a thread that saves uses it while the training uses the others.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return ALONE
    world = distributed.group.WORLD
    if _JOINED.get("world") is not world:
        group = distributed.new_group(backend="gloo", timeout=TIMEOUT)
        _JOINED.update(world=world, gather=Gather(group))
    found = _JOINED["gather"]
    assert isinstance(found, Gather)
    return found


def exchange(ranks: Gather, message: Json) -> list[Json]:
    """What every rank says, by rank. LostRank if one died or hangs."""
    try:
        heard = ranks.all_gather(json.dumps(message, separators=(",", ":")).encode())
    except LostRank as error:
        raise LostRank(f"a checkpoint is written and read by all ranks together, but {error}") from error
    return [json.loads(bytes(text)) for text in heard]


def run_on_ranks(ranks: Gather, work: Callable[[], Json]) -> list[Json]:
    """What `work` gave on every rank; where it failed on any, every rank raises the same.

    Raises:
        NemoVfmError: of the kind and with the text of the first rank that raised one.
        LostRank: a rank died or hangs.
    """
    own: Exception | None = None
    try:
        message: Json = {"done": work()}
    except Exception as error:  # told to the others, then raised
        own, message = error, {"kind": type(error).__name__, "text": str(error)}
    heard = exchange(ranks, message)
    for rank, other in enumerate(heard):
        if "text" in other:
            if own is not None and rank == ranks.rank():
                raise own
            kind = getattr(errors, other["kind"], None)  # as its kind where that is one of ours
            if isinstance(kind, type) and issubclass(kind, NemoVfmError):
                raise kind(other["text"])
            raise NemoVfmError(f"rank {rank}: {other['kind']}: {other['text']}")
    return [other["done"] for other in heard]
