"""Decides which checkpoints may be deleted under a retention rule. Nothing is deleted here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.metric_names import Mode


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay on disk: the newest, the best, and those that were marked permanent.

    Args:
        last: how many of the newest; None keeps all.
        best: how many of the best by `metric`, besides.
        metric: as it stood when the checkpoint was written.
        mode: whether a small or a large value is good.
    """

    last: int | None = None
    best: int = 0
    metric: str = "val_loss"
    mode: Mode = "min"

    def __post_init__(self) -> None:
        if self.best < 0 or (self.last is not None and self.last < 1):
            raise ValueError(f"keep_last ({self.last}) must be at least 1 and keep_best ({self.best}) at least 0")


@dataclass(frozen=True, slots=True)
class Record:
    """What a checkpoint's own manifest says of it. There is no list of the best beside them that could be lost."""

    path: Path
    step: int
    run: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    permanent: bool = False


def surplus(records: Sequence[Record], keep: Keep) -> list[Path]:
    """The checkpoints that neither rule keeps, oldest first; of two that are equally good the newer one stays."""
    if keep.last is None:
        return []
    ordered = sorted(records, key=lambda record: record.step)
    judged = [record for record in ordered if keep.metric in record.metrics]
    sign = 1 if keep.mode == "min" else -1
    best = sorted(judged, key=lambda record: (sign * record.metrics[keep.metric], -record.step))[: keep.best]
    stay = {record.path for record in [*ordered[-keep.last :], *best]}
    return [record.path for record in ordered if record.path not in stay and not record.permanent]
