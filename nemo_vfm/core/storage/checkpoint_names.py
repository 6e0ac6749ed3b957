"""Names checkpoints by their steps, finds the finished ones, and decides which of them may go.

Ours is a folder `step-00000100` that is finished once its manifest is there. Lightning's is `step-00000100.ckpt`, which
has this name once it is finished: a file or, where it is sharded, a folder.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.metric_names import Mode

MANIFEST, LIGHTNING = "manifest.json", ".ckpt"
#: The end of a finished checkpoint's path, for the `sed -E` of a batch script.
FINISHED = r"step-([0-9]{8,18})(/manifest\.json|\.ckpt)"
_STEP = re.compile(r"step-([0-9]{8,18})(?:\.ckpt)?")


def name(step: int) -> str:
    """Of the checkpoint of a step; Lightning's has `LIGHTNING` behind it."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """The step that a name says; -1 where it is not that of a checkpoint."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, those of lower steps first; one may be a link to where a user moved it."""
    found = [path.parent for path in folder.glob(f"step-*/{MANIFEST}") if path.is_file()]
    found += folder.glob(f"step-*{LIGHTNING}")
    return sorted((path for path in found if step_of(path.name) >= 0), key=lambda path: step_of(path.name))


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay on disk: the newest, the best, and those that were marked permanent."""

    last: int | None = None  #: how many of the newest; None keeps all
    best: int = 0  #: how many of the best by `metric`, besides
    metric: str = "val_loss"  #: as it stood when the checkpoint was written
    mode: Mode = "min"  #: whether a small or a large value is good

    def __post_init__(self) -> None:
        if self.best < 0 or (self.last is not None and self.last < 1):
            raise ValueError(f"keep_last ({self.last}) must be at least 1 and keep_best ({self.best}) at least 0")


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """What a checkpoint's own manifest says of it. There is no list of the best beside them that could be lost."""

    path: Path
    step: int
    run: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    permanent: bool = False


def surplus(records: Sequence[CheckpointRecord], keep: Keep) -> list[Path]:
    """The checkpoints that neither rule keeps, oldest first; of two that are equally good the newer one stays."""
    if keep.last is None:
        return []
    ordered = sorted(records, key=lambda record: record.step)
    judged = [record for record in ordered if keep.metric in record.metrics]
    sign = 1 if keep.mode == "min" else -1
    best = sorted(judged, key=lambda record: (sign * record.metrics[keep.metric], -record.step))[: keep.best]
    stay = {record.path for record in [*ordered[-keep.last :], *best]}
    return [record.path for record in ordered if record.path not in stay and not record.permanent]
