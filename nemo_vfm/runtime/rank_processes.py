"""Runs one of several ranks of a run: rank 0 keeps the folder, the others follow it.

Rank 0 does all that must be done once. It locks the folder, decides whether a step continues, runs the steps that
need one process, and writes status and report. Before each distributed step it tells the others, which wait for this.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core import log, ranks
from nemo_vfm.core.errors import LostRank, NemoVfmError, NextPhase, Preempted
from nemo_vfm.core.preemption import EXIT_CODE as PREEMPTED
from nemo_vfm.core.preemption import INTERRUPTED, PreemptedNow, idle_error, is_interrupt
from nemo_vfm.core.process import die_with_parent, end_now
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.job import Job, heard_by
from nemo_vfm.runtime import orphan_killer
from nemo_vfm.runtime.local_launch import PIPE
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from nemo_vfm.parallel.ranks.process_group import World

_PATIENCE_S = {0: 20.0, LostRank.exit_code: 0.0}  # that rank 0 waits for the others to hear the end, by its status
_LAUNCHED: list[bool] = []  # whether our launcher has started this process, and its output still goes to the terminal


def run_as_one_of_several(
    job: Job, recipe: str, folder: Path, first: Callable[[], int], lost: Callable[[str], object], *,
    timeout_s: float, silence_s: float,
) -> int:  # fmt: skip
    """Meet the others, work, leave; the exit status.

    Args:
        recipe: the composed recipe's text, which must be the same on all ranks.
        first: what rank 0 does: all of `nemo-vfm run`, which announces its steps; gives the exit status.
        lost: writes down on rank 0 whose signs of life ended, before it must end because of that.
        timeout_s: how long the others may take to come, and each collective.
        silence_s: how long a rank may give no sign of life.
    """
    from nemo_vfm.parallel.ranks.process_group import join_ranks

    def end(sentence: str) -> None:
        with suppress(Exception):
            if ranks.is_first():
                lost(sentence)
            log.console().show_cursor(True)
            sys.stderr.write(f"{log.scrub(sentence)}. Run the same command again to resume from the last checkpoint\n")
        end_now(LostRank.exit_code)

    with join_ranks(sha256_text(recipe), on_lost=end, timeout_s=timeout_s, silence_s=silence_s) as world:
        if ranks.is_first():
            try:
                with heard_by(world.tell):
                    status = first()
            except (NemoVfmError, PreemptedNow, KeyboardInterrupt) as error:
                meant = error if isinstance(error, NemoVfmError) else idle_error(error)
                sys.stderr.write(f"{log.scrub(str(meant))}\n")
                status = meant.exit_code
            world.tell_end(patience_s=_PATIENCE_S.get(status, 3.0))
        else:
            status = _follow(world, job, folder)
        if status:  # groups whose members may be gone cannot be taken down in order
            end_now(status)
    return status


def end_with_the_launcher() -> None:
    """From here on this process and what it starts end when the launcher does, however that ends."""
    number = os.environ.pop(PIPE, "")
    if not number:
        return
    _LAUNCHED.append(True)
    die_with_parent()  # also while Python is held, or the process stopped
    ours = [os.getpgrp()]
    threading.Thread(target=orphan_killer.main, args=(int(number), ours), name="launcher", daemon=True).start()


def _follow(world: "World", job: Job, folder: Path) -> int:
    """Do each job that rank 0 announces; the exit status.

    Where one fails, the traceback is left in this rank's own output, and the sentence with rank 0.
    """
    from nemo_vfm.parallel.ranks.process_group import lost_behind

    try:
        while (run := world.hear()) is not None:
            names = run.folder.relative_to(folder).parts
            own = job.job_in(*names) if names and isinstance(job, Workflow) else job
            if _LAUNCHED:  # what our launcher's rank says from here on goes into a file: the terminal is rank 0's
                _LAUNCHED.clear()  # torchrun and srun have places of their own for it
                file = folder / "ranks" / f"rank-{ranks.rank()}.log"
                file.parent.mkdir(exist_ok=True)
                with file.open("ab") as opened:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os.dup2(opened.fileno(), 1)
                    os.dup2(opened.fileno(), 2)
                log.speak()
            own.run(run)
    except PreemptedNow:
        return PREEMPTED
    except (Preempted, NextPhase) as error:
        return error.exit_code
    except BaseException as error:
        if is_interrupt(error):
            return INTERRUPTED
        meant = lost_behind(error) or error
        world.confess(meant)
        sys.stderr.write(conceal("".join(traceback.format_exception(error))))
        sys.stderr.write(f"{log.scrub(str(meant))}\n")
        return meant.exit_code if isinstance(meant, NemoVfmError) else 1
    return 0
