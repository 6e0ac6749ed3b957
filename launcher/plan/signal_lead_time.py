"""Computes how long before its time limit a job must be asked to stop, from its run folder, and reads that limit."""

import re
from pathlib import Path

from nemo_vfm.core.storage.files import read_json

USUAL_S = 300  # where nothing has been saved yet
EARLIER_S = 60  # than asked for, at most: Slurm looks at its clock now and then
_LEAST_S = 120
_LONGEST_S = 65_520  # Slurm keeps the lead in 16 bits
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_TIMES, _STEPS = 3, 2  # a busy disk; the step that is under way, and the one after it


def lead_s(run_dir: Path) -> int:
    """Three times what the slowest checkpoint of the run took, and two steps; whole minutes, since Slurm asks within
    one.
    """
    try:
        status = read_json(run_dir / "status.json")
        saved, step = (float(status.get(name) or 0) for name in ("checkpoint_s", "step_s"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return USUAL_S
    if not 0 < saved < 86_400 or not 0 <= step < 86_400:
        return USUAL_S
    return min(_LONGEST_S, max(_LEAST_S, 60 * -(-int(_TIMES * saved + _STEPS * step) // 60)))


def limit_s(time: str | int) -> int | None:
    """A time limit as Slurm reads it, which rounds up to whole minutes; None where 0 asks for none.

    Behind days come hours; without them, two numbers are minutes and seconds.
    """
    match = _LIMIT.fullmatch(str(time))
    assert match is not None  # a cluster refuses any other
    days, *rest = match.groups()
    first, second, third = (int(text or 0) for text in rest)
    if days is not None or rest[2] is not None:
        seconds = 86_400 * int(days or 0) + 3600 * first + 60 * second + third
    else:
        seconds = 60 * first + second
    return 60 * -(-seconds // 60) or None
