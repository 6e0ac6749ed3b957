"""Remembers, in the user's own folder, what the user let a recipe write, so that its run folder can be resumed alone.

Nothing in a run folder can grant this: it may come from somebody else. An entry is found by the hash of the whole
recipe, and so permits only what the user permitted when exactly this recipe ran.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import read_json, sha256_file, sha256_text, write_json


def remember(recipe: str, writes: Sequence[Path]) -> None:
    """Keep what a recipe of this text was allowed to write outside its run folder and the working directory."""
    if not writes:
        return
    try:
        file = _file(sha256_text(recipe))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, {"writes": [str(path) for path in writes]})
    except (OSError, RuntimeError) as error:  # a container's user may have no home
        warn(f"the permissions to write cannot be stored ({error}); give them again to resume from the run folder's "
             f"recipe.yaml: {', '.join(map(str, writes))}")  # fmt: skip


def remembered(recipe: Path) -> list[Path]:
    """What the user let exactly this recipe write; nothing where the user has not run it."""
    try:
        found = read_json(_file(sha256_file(recipe)))["writes"]
        return [Path(path) for path in found]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError):
        return []


def _file(digest: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local/state"
    return folder / "nemo_vfm/allowed_writes" / f"{digest}.json"
