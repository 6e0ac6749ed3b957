"""Reads the status of the run in a folder; what cannot be read becomes a note and never an exception."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nemo_vfm.core.metric_names import NOT_FINITE, not_finite_since, validation_loss
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import last_records, read_json
from nemo_vfm.core.types.job import DONE, LAUNCH, MANIFEST, RECIPE, STARTED, STATUS, SWEEP
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.recipe_metric import recipe_metric
from nemo_vfm.runtime.run_lock import holder

MAX_DEPTH = 4  # a sweep's runs lie one deeper than others; links may lead in circles
_MAX_BYTES = 4 << 20
_MAX_STATE_CHARS = 20
_STEP = re.compile(r"[A-Za-z][\w-]*")


@dataclass(slots=True)
class RunLine:
    """One run, as `nemo-vfm runs` shows it; None where it is not known."""

    path: Path
    #: running, stalled (it says running, and its process is gone), done, failed, nothing_kept, preempted,
    #: between_phases, interrupted, submitted (it waits in a queue), prepared (nothing has run yet), damaged or not a
    #: run.
    state: str
    recipe: str | None = None
    at: str | None = None  #: of a workflow, the step that it is in or ended in
    steps_done: tuple[int, int] | None = None  #: of a workflow, finished steps and all steps
    step: int | None = None
    loss: float | None = None
    #: its validation loss; else its recipe's own metric, where a small value of that is good.
    val_loss: float | None = None
    #: metrics that are NaN or infinite, each with the step since which it is; a loss among them is None.
    not_finite: dict[str, int] = field(default_factory=dict)
    started: str | None = None
    seconds: float | None = None  #: of the last start, until its last sign of life
    seed: int | None = None
    num_bytes: int = 0  #: on disk; what links point to is not counted
    error: str | None = None  #: what it ended with
    last: float = 0.0  #: last sign of life, seconds since 1970; the heartbeat, else the folder's mtime
    notes: list[str] = field(default_factory=list)  #: what could not be read


def find_run_folders(root: Path) -> list[Path]:
    """The run folders below a folder, which may be one itself, and those folders in it that hold none."""
    return [root] if _is_run(root) else list(_below(root, MAX_DEPTH, {root.resolve()}))


def _below(folder: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
    children = [Path(entry) for entry in _entries(folder) if _is_folder(entry) and not entry.name.startswith(".")]
    for child in sorted(children):
        if _is_run(child):
            yield child
        elif depth > 1 and (real := child.resolve()) not in seen:
            yield from list(_below(child, depth - 1, seen | {real})) or ([child] if depth == MAX_DEPTH else [])


def _is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file() or _is_submitted(folder)


def _is_submitted(folder: Path) -> bool:
    """A launcher has put it into a queue, and nothing of it has run yet. A sweep's runs lie below it."""
    if any((folder / name).is_file() for name in (RECIPE, SWEEP)):
        return False
    return (folder / LAUNCH / "launch.json").is_file()


def read_status(folder: Path) -> RunLine:
    """Reads everything that `RunLine` shows about one folder."""
    line = RunLine(folder, "not a run", num_bytes=_size(folder), last=_mtime(folder))
    if not _is_run(folder):
        return line
    manifest, status = (_read_object(folder / name, line.notes) for name in (MANIFEST, STATUS))
    _, is_alive = holder(folder)
    state = _text(status.get("state"), _MAX_STATE_CHARS)
    if state is None and (folder / STATUS).exists():
        state = "damaged"
    elif state is None:
        state = "running" if is_alive else "prepared"
    elif state == "running" and not is_alive:
        state = "stalled"
    line.state = "submitted" if _is_submitted(folder) else state
    line.recipe, line.error = _text(manifest.get("recipe")), _text(status.get("error"))
    line.seed = _int(manifest.get("seed"))
    line.started = _text(status.get("started")) or _text(manifest.get("created"))
    began, beat = _time(status.get("started")), _time(status.get("heartbeat"))
    line.seconds = max(0.0, beat - began) if began is not None and beat is not None else None
    line.last = beat or line.last
    # Somebody may have changed the manifest: no name leads out of the run folder.
    given = manifest.get("steps")
    steps = [name for name in (given if isinstance(given, list) else ())
             if isinstance(name, str) and _STEP.fullmatch(name)]  # fmt: skip
    if steps:
        done = [step for step in steps if (folder / step / DONE).is_file()]
        unfinished = [step for step in steps if (folder / step / STARTED).is_file() and step not in done]
        line.steps_done, line.at = (len(done), len(steps)), unfinished[0] if unfinished else None
    # Step and losses from the end of the newest metrics.jsonl.
    logs = [log for name in ("", *steps) if (log := folder / name / "metrics.jsonl").is_file()]
    if logs:
        records = list(last_records(max(logs, key=_mtime)))
        line.not_finite = {_text(name, 80) or "": step for name, step in not_finite_since(records).items()}
        line.step = next((step for record in records if (step := _int(record.get("step"))) is not None), None)
        names = (validation_loss(record) for record in records)
        line.loss, line.val_loss = (_newest_value(records, name) for name in ("loss", next(filter(None, names), "")))
        if line.val_loss is None and (metric := recipe_metric(folder)) is not None and metric.mode == "min":
            line.val_loss = _newest_value(records, metric.name)
    return line


def _newest_value(records: list[dict[str, Json]], name: str) -> float | None:
    """The newest value; None where that is not finite."""
    for record in records:
        if (value := _number(record.get(name))) is not None:
            return value
        if isinstance(lost := record.get(NOT_FINITE), list) and name in lost:
            return None
    return None


def _read_object(file: Path, notes: list[str]) -> dict[str, Json]:
    """A file's JSON object; an empty one where there is none, with a note where it cannot be read."""
    try:
        found = read_json(file, _MAX_BYTES)
        if not isinstance(found, dict):
            raise ValueError("it is not a mapping")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        notes.append(f"{file.name} cannot be read: {why}")
        return {}
    return found


def _text(value: Json, max_chars: int = 2000) -> str | None:
    """A text as one printable line: these files are untrusted."""
    return printable(value, max_chars).strip() if isinstance(value, str) else None


def _int(value: Json) -> int | None:
    """A whole number that a table has room for."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _number(value: Json) -> float | None:
    is_valid = type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return float(value) if is_valid else None


def _time(value: Json) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _size(folder: Path) -> int:
    total, pending = 0, _entries(folder)
    while pending:
        entry = pending.pop()
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                pending += _entries(entry)
            else:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
