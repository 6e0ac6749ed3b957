"""Serves one model on several tensor ranks: starts them here unless torchrun or srun has, and ends them together."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import LostRank, NemoVfmError, UserError
from nemo_vfm.core.process import end_now

if TYPE_CHECKING:
    from nemo_vfm.parallel.ranks.process_group import World
    from nemo_vfm.serve.continuous.model_passes import ModelPasses
    from nemo_vfm.serve.served_model import ServedModel

_PATIENCE_S = 20.0  # that rank 0 waits for the others to hear the end

#: Gives the whole model, on each rank.
Load: TypeAlias = "Callable[[], ServedModel]"
#: What rank 0 does until the server's end, close of the passes included; the exit status.
Answer: TypeAlias = "Callable[[ServedModel, ModelPasses], int]"


@dataclass(frozen=True, slots=True)
class TensorServing:
    """A server on several ranks."""

    tensor: int  #: how many
    words: Sequence[str]  #: behind `nemo-vfm`; they must be the same on all ranks
    room_gb: float  #: of each rank
    at_once: int  #: texts written at once


def serve_on_ranks(serving: TensorServing, load: Load, answer: Answer) -> int:
    """Start the ranks, or be one of them until the server's end; the exit status."""
    from nemo_vfm.core.storage.files import sha256_text
    from nemo_vfm.parallel.ranks.process_group import join_ranks
    from nemo_vfm.runtime.local_launch import launch
    from nemo_vfm.runtime.rank_processes import end_with_the_launcher

    end_with_the_launcher()
    ranks.adopt_slurm(os.environ)
    if not ranks.is_given():
        return launch(serving.words, serving.tensor, ["SIGTERM"], advice="Start the server again")
    if ranks.count() != serving.tensor:
        raise UserError(f"--tensor {serving.tensor} needs as many ranks, but {ranks.count()} were started")
    if not ranks.is_first():  # rank 0 lets answers out, and then tells the others
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    with join_ranks(sha256_text(repr(list(serving.words))), on_lost=_end) as world:
        try:
            from nemo_vfm.parallel.engine.serving_ranks import split_for_serving
            from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom
            from nemo_vfm.serve.continuous.model_passes import ModelPasses
            from nemo_vfm.serve.continuous.packed_block import pack_modules
            from nemo_vfm.serve.continuous.rank_passes import LeadingPasses, follow
            from nemo_vfm.serve.memory_settings import blocks_side_by_side, collapse_pages

            served = load()
            split = split_for_serving(served.model, serving.tensor)
            with blocks_side_by_side():
                pack_modules(served.model)
            room = KeyValueRoom(served.model, serving.room_gb, serving.tensor)
            if ranks.is_first():
                passes = LeadingPasses(served.model, room, serving.at_once, split, partial(_end_for, world))
                status = answer(served, passes)
                world.tell_end(patience_s=_PATIENCE_S)
            else:
                following, status = ModelPasses(served.model, room, serving.at_once, ranks=split), 0
                collapse_pages()
                follow(following, split)
                world.hear()
        except Exception as error:
            _end_for(world, error)
    return status


def _end_for(world: "World", error: Exception) -> NoReturn:
    """End this rank, and with it all: rank 0 says why, and another rank tells it."""
    if not isinstance(error, NemoVfmError):
        # The loss of another rank may be behind it: a collective says only that a connection was closed.
        if not ranks.is_first():
            from nemo_vfm.parallel.ranks.process_group import lost_behind

            error = lost_behind(error) or error
        elif (sentence := world.why_lost()) is not None:
            error = LostRank(sentence)
    if not ranks.is_first():
        world.confess(error)
    if ranks.is_first() or isinstance(error, LostRank):
        _end(str(error), error.exit_code if isinstance(error, NemoVfmError) else 1)
    end_now(error.exit_code if isinstance(error, NemoVfmError) else 1)


def _end(sentence: str, status: int = LostRank.exit_code) -> NoReturn:
    from nemo_vfm.core import log

    with suppress(Exception):
        sys.stderr.write(f"{log.scrub(sentence)}. Rank {ranks.rank()} of the server ends\n")
    end_now(status)
