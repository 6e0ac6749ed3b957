"""Chooses the best checkpoint of a Lightning run, and finds it and the last again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import Mode
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.parallel.ranks.process_group import first_says

#: A link to the checkpoint that is the best so far.
BEST = f"best{checkpoint_names.LIGHTNING}"
#: The weights after the training, where its last hooks have changed them, such as to an average. No resume reads it.
FINAL = f"final{checkpoint_names.LIGHTNING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """By what the best checkpoint is chosen, which stays besides the newest.

    Args:
        metric: as the module logs it.
        mode: whether a small or a large value is good.
    """

    metric: str
    mode: Mode


class BestSoFar:
    """The best checkpoint of the run so far: `checkpoints/best.ckpt` leads to it.

    Args:
        folder: of the checkpoints.
        keep: by what it is chosen; None chooses none.
    """

    def __init__(self, folder: WritePath, keep: KeepBest | None) -> None:
        self.folder, self.keep = folder, keep
        self.step, self.score = -1, math.nan
        self._by = "" if keep is None else f"{keep.mode} {keep.metric}"

    def improves(self, metrics: Mapping[str, object], step: int) -> bool:
        """Whether this step is better than all before, as the first rank sees it; it is the best from here on."""
        if self.keep is None:
            return False
        value: Any = metrics.get(self.keep.metric, math.nan)
        score = float(first_says(repr(float(value))))  # asked by every rank: some modules log on the first alone
        sign = 1 if self.keep.mode == "min" else -1
        if not math.isfinite(score) or (self.step >= 0 and sign * score >= sign * self.score):
            return False
        self.step, self.score = step, score
        return True

    @property
    def path(self) -> Path | None:
        """The checkpoint itself; None where there is none yet."""
        path = self.folder / f"{checkpoint_names.name(self.step)}{checkpoint_names.LIGHTNING}"
        return path if self.step >= 0 and path.exists() else None

    def link(self) -> None:
        """Let `best.ckpt` lead to it."""
        if (path := self.path) is None or not ranks.is_first():
            return
        unfinished = self.folder / f".{BEST}.tmp"
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(path.name)
        unfinished.replace(self.folder / BEST)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best_by": self._by, "best_step": self.step, "best_score": self.score}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse, where the choice was made by the same metric."""
        if state.get("best_by") == self._by:
            self.step, self.score = int(state["best_step"]), float(state["best_score"])


def list_checkpoints(folder: Path) -> list[Path]:
    """Lightning's checkpoints of a run folder, those of lower steps first."""
    found = checkpoint_names.list_checkpoints(folder / "checkpoints")
    return [path for path in found if path.suffix == checkpoint_names.LIGHTNING]


def find_checkpoint(folder: Path, which: str) -> Path:
    """The checkpoint of a run folder that `best` or `last`, or `FINAL` after it, means. UserError if there is none."""
    best = folder / "checkpoints" / BEST
    final = best.with_name(FINAL)
    path = best if which == "best" else final if final.exists() else ([Path(), *list_checkpoints(folder)])[-1]
    if which == "best" and not best.exists():
        raise UserError(f"{folder} has no best checkpoint: its training has no keep_best, or has not logged the metric "
                        f"yet; use ckpt: last, or a path")  # fmt: skip
    if path == Path():
        raise UserError(f"{folder} has no checkpoint yet; run its training first")
    return path.resolve() if which == "best" else path
