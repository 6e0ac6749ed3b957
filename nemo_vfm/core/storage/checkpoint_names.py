"""Names checkpoints by their steps, and finds the finished ones: for whoever writes, resumes, reports or restarts.

Ours is a folder `step-00000100` that is finished once its manifest is there. Lightning's is `step-00000100.ckpt`, which
has this name once it is finished: a file or, where it is sharded, a folder.
"""

import re
from pathlib import Path

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


def existing(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, those of lower steps first; one may be a link to where a user moved it."""
    found = [path.parent for path in folder.glob(f"step-*/{MANIFEST}") if path.is_file()]
    found += folder.glob(f"step-*{LIGHTNING}")
    return sorted((path for path in found if step_of(path.name) >= 0), key=lambda path: step_of(path.name))
