"""Records what lies in the GPU's memory during a step and who allocated it, as PyTorch's own snapshot."""

from collections.abc import Sequence

from nemo_vfm.core import log, ranks
from nemo_vfm.core.device import memory_history, memory_snapshot
from nemo_vfm.train.state.train_state import TrainState


class MemorySnapshot:
    """Writes `memory/rank-<r>-step-<n>.snapshot`, for the viewer at pytorch.org/memory_viz; GPUs only.

    Where the run ends in an error, such as one of memory, what led to it is written too.

    Args:
        step: after which step it is written, counted from 1.
        ranks: which of the processes write one.
        max_events: how many of the last requests for memory are kept, with their stacks.
    """

    def __init__(self, *, step: int = 3, ranks: Sequence[int] = (0,), max_events: int = 100_000) -> None:
        if step < 1 or max_events < 1 or any(rank < 0 for rank in ranks):
            raise ValueError(f"step ({step}) and max_events ({max_events}) must be at least 1, ranks ({list(ranks)}) "
                             f"at least 0")  # fmt: skip
        self.step, self.ranks, self.max_events = step, tuple(ranks), max_events
        self._recording = False

    def on_start(self, fit: TrainState) -> None:
        """Begin to keep who asks for memory; say it where there is no GPU."""
        if ranks.rank() not in self.ranks or fit.step >= self.step:
            return
        self._recording = memory_history(self.max_events)
        if not self._recording:
            log.warn("memory snapshot: this process has no GPU, and only GPU memory can be recorded: no snapshot is "
                     "written")  # fmt: skip

    def on_step(self, fit: TrainState) -> None:
        """Write it where due."""
        if self._recording and fit.step >= self.step:
            self._write(fit)

    def on_end(self, fit: TrainState) -> None:
        """Write it where the run ends before that step."""
        if self._recording:
            self._write(fit)

    def _write(self, fit: TrainState) -> None:
        folder = fit.run.folder / "memory"
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{ranks.rank()}-step-{fit.step}.snapshot"
        memory_snapshot(path)
        self._recording = memory_history(0)
        log.info(f"memory snapshot: step {fit.step} is in {path}")
