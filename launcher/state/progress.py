"""Reads a run's progress from status.json, metrics.jsonl and checkpoints; no queue is queried."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.files import last_records, read_json

_MOST_BYTES = 4 << 20
_NOTHING_S = 1e-3  # a step's reading that takes less holds nobody up
_SLOWER = 1.1  # times as long: equal devices differ by a few per cent
SILENT_S = 60.0  # six heartbeats: worth saying, and no proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run folder says; None where it says nothing."""

    state: str | None = None  #: of status.json
    error: str | None = None  #: what it ended with
    step: int | None = None  #: done
    total_steps: int | None = None  #: of the run
    step_s: float | None = None  #: mean seconds of the last steps
    loss: float | None = None  #: of the last step
    rates: Mapping[str, float]  #: work a second, by name
    checkpoint: int | None = None  #: step of the newest one
    checkpoint_age_s: float | None = None  #: how old that is
    silent_s: float | None = None  #: since the last heartbeat
    slowest: str = ""  #: on the rank whose data, or whose device, the others wait for; empty where none stands out
    elsewhere: Mapping[str, str]  #: what ranks do that do something else than rank 0, by rank

    @property
    def left_s(self) -> float | None:
        """Until its last step."""
        if self.step is None or self.total_steps is None or self.step_s is None or self.state != "running":
            return None
        return max(0, self.total_steps - self.step) * self.step_s


def progress(folder: Path, below: Path | None = None) -> Progress:
    """Look at a run; `below` is the folder of the step of a workflow that is of interest."""
    status, now = _object(folder / "status.json"), datetime.now(UTC).timestamp()
    inner = below or folder
    last = next(last_records(inner / "metrics.jsonl"), {})
    checkpoint = _newest_checkpoint(inner)
    beat = _time(status.get("heartbeat"))
    rates = {name: _number(last.get(name)) for name in ("samples_per_s", "tokens_per_s", "mfu")}
    elsewhere = status.get("elsewhere") if status.get("state") == "running" else None
    return Progress(
        state=_text(status.get("state")), error=_text(status.get("error")),
        step=_whole(status.get("step")) if _whole(status.get("step")) is not None else _whole(last.get("step")),
        total_steps=_whole(status.get("total_steps")), step_s=_number(status.get("step_s")),
        loss=_number(last.get("loss")), rates={name: value for name, value in rates.items() if value is not None},
        checkpoint=checkpoint[0] if checkpoint else None, checkpoint_age_s=now - checkpoint[1] if checkpoint else None,
        silent_s=None if beat is None else max(0.0, now - beat), slowest=_slowest(status),
        elsewhere={rank: text for rank, doing in elsewhere.items() if (text := _text(doing))}
        if isinstance(elsewhere, dict) else {},
    )  # fmt: skip


def _slowest(status: Mapping[str, Any]) -> str:
    """Whose data, and whose device, the others wait for."""
    found = []
    rank, seconds = _of_rank(status, "reads_longest", "seconds")
    if rank is not None and seconds is not None and seconds >= _NOTHING_S:
        found.append(f"rank {rank} is the slowest reader: {seconds:.3g} s a step")
    rank, times = _of_rank(status, "computes_slowest", "times")
    if rank is not None and times is not None and times >= _SLOWER:
        found.append(f"rank {rank} is {times:.3g}x slower than the rest on the same matmul")
    return "; ".join(found)


def _of_rank(status: Mapping[str, Any], name: str, figure: str) -> tuple[int | None, float | None]:
    """A rank that stands out while a run is under way, and by how much."""
    found = status.get(name) if status.get("state") == "running" else None
    return (_whole(found.get("rank")), _number(found.get(figure))) if isinstance(found, dict) else (None, None)


def _newest_checkpoint(folder: Path) -> tuple[int, float] | None:
    """Its step, and when it was written."""
    for path in reversed(checkpoint_names.existing(folder / "checkpoints")):
        with suppress(OSError):  # it may just have been deleted
            return checkpoint_names.step_of(path.name), path.stat().st_mtime
    return None


def _object(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = read_json(file, _MOST_BYTES)
        return found if isinstance(found, dict) else {}
    return {}


def _text(value: object) -> str | None:
    """One printable line: these files may be anybody's."""
    if not isinstance(value, str):
        return None
    return "".join(c if c.isprintable() else " " for c in value[:2000]).strip()


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 10**18 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _time(value: object) -> float | None:
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    return None
