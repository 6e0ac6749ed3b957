"""Profiles a few steps: a trace of every call and kernel, and a table of the most expensive."""

from collections.abc import Sequence

from torch.profiler import ProfilerActivity, profile

from nemo_vfm.core import log, ranks
from nemo_vfm.core.device import device, synchronize
from nemo_vfm.core.storage.files import write_text
from nemo_vfm.train.state.train_state import TrainState

_ROWS = 40


class Profile:
    """Writes `profile/rank-<r>-steps-<a>-<b>.json.gz`, for Perfetto or chrome://tracing, and a `.txt` with a table.

    What lies between two steps, reading samples and other callbacks, is in the trace too.

    Args:
        first_step: the first step that is recorded, counted from 1; the very first ones compile and ask for memory.
        num_steps: how many are recorded.
        ranks: which of the processes record; each writes its own files.
        shapes: keep the shapes of tensors, which makes the trace larger.
    """

    def __init__(
        self, *, first_step: int = 10, num_steps: int = 3, ranks: Sequence[int] = (0,), shapes: bool = False
    ) -> None:
        if first_step < 1 or num_steps < 1 or any(rank < 0 for rank in ranks):
            raise ValueError(
                f"first_step ({first_step}) and num_steps ({num_steps}) must be at least 1, ranks ({list(ranks)}) at "
                f"least 0"
            )
        self.first_step, self.num_steps, self.ranks, self.shapes = first_step, num_steps, tuple(ranks), shapes
        self._last = first_step + num_steps - 1
        self._running: profile | None = None
        self._began = 0

    def on_start(self, fit: TrainState) -> None:
        """Begin, where the first step of this process is to be recorded."""
        if fit.step >= self._last and ranks.is_first():
            log.info(f"profile: the run resumes after step {self._last}, so no step is recorded")
        self._begin(fit)

    def on_step(self, fit: TrainState) -> None:
        """Begin before the first step, write after the last."""
        if self._running is not None and fit.step >= self._last:
            self._write(fit)
        self._begin(fit)

    def on_end(self, fit: TrainState) -> None:
        """Write what there is where the run ends between the two."""
        if self._running is not None:
            self._write(fit)

    def _begin(self, fit: TrainState) -> None:
        inside = self.first_step <= fit.step + 1 <= self._last and not fit.finished
        if self._running is not None or not inside or ranks.rank() not in self.ranks:
            return
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device().type == "cuda" else [])]
        synchronize()  # kernels of the step before would be taken for this one's
        self._running, self._began = profile(activities=kinds, record_shapes=self.shapes), fit.step + 1
        self._running.start()

    def _write(self, fit: TrainState) -> None:
        assert self._running is not None
        synchronize()
        running, self._running = self._running, None
        running.stop()
        folder = fit.run.folder / "profile"
        folder.mkdir(exist_ok=True)
        name = f"rank-{ranks.rank()}-steps-{self._began}-{fit.step}"
        unfinished = folder / f".{name}.tmp.json.gz"
        running.export_chrome_trace(str(unfinished))
        unfinished.replace(folder / f"{name}.json.gz")
        by = "self_device_time_total" if device().type == "cuda" else "self_cpu_time_total"
        write_text(folder / f"{name}.txt", running.key_averages().table(sort_by=by, row_limit=_ROWS) + "\n")
        log.info(f"profile: steps {self._began} to {fit.step} are in {folder / name}.json.gz")
