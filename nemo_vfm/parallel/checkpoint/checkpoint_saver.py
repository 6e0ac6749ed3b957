"""Writes a checkpoint in a thread while the training takes its next steps.

The step loop waits only for the copy, and for the previous save if that is not written yet.
"""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from nemo_vfm.core import log, progress
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE
from nemo_vfm.parallel.checkpoint.checkpoint_snapshot import Buffers, Groups, Owners, snapshot
from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo, write
from nemo_vfm.parallel.ranks.gather import Gather


class Saver:
    """Saves one checkpoint after another; every rank calls each method at the same steps.

    Args:
        folder: the run's checkpoint folder.
        ranks: who writes them together; nobody else may use that group while a save is under way.
        asynchronous: False waits for each to be written.
    """

    def __init__(self, folder: Path, ranks: Gather = ALONE, *, asynchronous: bool = True) -> None:
        self.folder, self._ranks, self._asynchronous = folder, ranks, asynchronous
        self._buffers, self._owners = Buffers(), Owners()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(
        self, step: int, groups: Groups, state: Json, keep: Keep, about: CheckpointInfo,
        then: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Take a copy and return: the tensors may change at once. Rank 0 calls `then` once the checkpoint is there.

        UserError if this one, or the one before it, could not be written; see `write`.
        """
        self.finish()
        taken = snapshot(self.folder, step, groups, about.run, self._ranks, self._buffers, self._owners)

        def work() -> None:
            began = time.monotonic()
            try:
                write(self.folder, taken, state, keep, about, self._ranks)
                if then is not None and self._ranks.rank() == 0:
                    then()
                progress.checkpoint(time.monotonic() - began)
            except BaseException as error:  # whatever it is, the step loop raises it
                if not self._asynchronous:
                    raise
                self._error = error
                if self._ranks.num_ranks() > 1 and self._ranks.rank() == 0:
                    log.warn(f"{error} The run ends at its next checkpoint.")

        if self._asynchronous:
            # Not a daemon: a process that ends finishes what it writes, unless it is killed.
            self._thread = Thread(target=work, name="checkpoint")
            self._thread.start()
        else:
            work()

    def check(self) -> None:
        """Raise what a save that has ended met. Several ranks would learn of it at different steps, so they wait."""
        if self._ranks.num_ranks() == 1 and self._thread is not None and not self._thread.is_alive():
            self.finish()

    def finish(self) -> None:
        """Wait until all is written. UserError if the last one could not be; see `write`."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
