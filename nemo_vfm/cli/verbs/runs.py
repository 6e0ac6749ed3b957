"""List runs, the latest first: state, step, losses, when, how long, how large.

The state is that of status.json: running, done, failed, nothing_kept, interrupted. A stalled run says that it is
running, but its process no longer exists; the command that started it resumes it. A submitted one waits in a queue, a
prepared one has not started, and a damaged one has an unreadable status. A line below names numbers
that are NaN or infinite. Nothing is written. A narrow terminal omits columns.

Examples:
  nemo-vfm runs                  # every run below runs/, also those of sweeps; of a workflow, its current step
  nemo-vfm runs DIR DIR          # other folders, or single runs
  nemo-vfm runs --json           # also errors, the time of the last heartbeat, what could not be read
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import not_finite_text
from nemo_vfm.core.sanitize import printable
from nemo_vfm.runtime.run_status import RunLine, find_run_folders, read_status

# The order on the terminal, and which column is left out first where the terminal is narrow (the highest number).
_ORDER = ("run", "state", "step", "loss", "val loss", "started", "took", "size", "seed", "recipe")
_LEFT_OUT = ("recipe", "seed", "size", "took", "started", "val loss", "loss", "step")
_TO_THE_RIGHT = ("step", "loss", "val loss", "took", "size", "seed")
_SHORTEST, _NAME = 12, 24  # letters of a name that are always shown, and for which other columns make room


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look."""
    parser.add_argument("folders", metavar="DIR", type=Path, nargs="*", default=[],
                        help="run folders, or folders that contain them (default: runs/)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Look at every folder and print a line each; nothing is written anywhere."""
    roots = arguments.folders or [Path("runs")]
    for root in roots:
        if not root.is_dir():
            raise UserError(f"there is no folder {root}; give the folder that your runs are in: nemo-vfm runs DIR")
    named = {}
    for root in roots:
        for folder in find_run_folders(root):
            # The name is as short as it can be and still be found, from the folder on that was asked for.
            short = folder.relative_to(root) if len(roots) == 1 and folder != root else folder
            named[folder] = printable(str(short), 1000)
    lines = sorted(map(read_status, named), key=lambda line: (-line.last, str(line.path)))
    if arguments.json:
        records = []
        for line in lines:
            last = _local(line.last)
            records.append({"run": named[line.path], **asdict(line), "path": str(line.path),
                            "last": None if last is None else last.isoformat(timespec="seconds")})  # fmt: skip
        sys.stdout.write(json.dumps(records, indent=1) + "\n")
        return 0
    if not lines:
        sys.stdout.write(f"no runs in {', '.join(map(str, roots))}\n")
        return 0
    rows = []
    for line in lines:
        began = _local(line.started or "")
        started = "" if began is None else began.strftime("%Y-%m-%d %H:%M")
        done = f" {line.steps_done[0]}/{line.steps_done[1]}" if line.steps_done else ""
        losses = ["" if loss is None else f"{loss:.4g}" for loss in (line.loss, line.val_loss)]
        rows.append({
            "run": named[line.path], "state": f"{line.state}{f' {line.at}' if line.at else ''}{done}",
            "step": "" if line.step is None else str(line.step), "loss": losses[0],
            "val loss": losses[1], "started": started, "took": _span(line.seconds),
            "size": _bytes(line.num_bytes), "seed": "" if line.seed is None else str(line.seed),
            "recipe": line.recipe or "",
        })  # fmt: skip
    sys.stdout.write(_table(rows, lines, shutil.get_terminal_size((100, 24)).columns))
    return 0


def _table(rows: Sequence[dict[str, str]], lines: Sequence[RunLine], width: int) -> str:
    wide = {n: max(len(n), *(len(row[n]) for row in rows)) for n in _ORDER if any(row[n] for row in rows)}
    # The columns that a terminal has room for; long names get a separate line before the last columns go.
    others = {name: wide[name] for name in wide if name != "run"}
    for name in _LEFT_OUT:
        if min(wide["run"], _NAME) + sum(size + 2 for size in others.values()) > width:
            others.pop(name, None)
    rest = width - sum(size + 2 for size in others.values())
    wide = {"run": min(wide["run"], max(_SHORTEST, rest)), **others}
    text = ["  ".join(_cell(name, name, wide[name]) for name in wide).rstrip()]
    for row, line in zip(rows, lines, strict=True):
        if len(row["run"]) > wide["run"]:  # a name is copied into the next command, so it is never cut
            text.append(row["run"])
        text.append("  ".join(_cell(name, row[name], wide[name]) for name in wide).rstrip())
        error_lines = [line.error] if line.error and line.state in ("failed", "nothing_kept") else []
        lost = not_finite_text(line.not_finite)
        lost_lines = [lost] if lost and lost not in "".join(error_lines) else []
        text += [
            f"    {textwrap.shorten(note, max(20, width - 4), placeholder=' ...')}"
            for note in [*error_lines, *lost_lines, *line.notes]
        ]
    return "".join(f"{row}\n" for row in text)


def _cell(name: str, text: str, width: int) -> str:
    text = text if len(text) <= width else ""
    return text.rjust(width) if name in _TO_THE_RIGHT else text.ljust(width)


def _local(time: float | str) -> datetime | None:
    """In the user's own time, since it is compared with a watch; None where a file says what no calendar has."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time)
        return moment.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"


def _bytes(number: int) -> str:
    size, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if unit != "B" else f"{number} B"
