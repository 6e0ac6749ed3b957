"""Keeps in a step's folder what the step was asked for, and whether it is done.

The folder holds `started.json`, written before anything else, and `done.json`, written after everything else. Both name
what the step was asked for (its part of the recipe) and what came before it (the steps above it and the seed).
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.recipe_keys import is_inert
from nemo_vfm.core.storage.files import read_json, sha256_text, write_json
from nemo_vfm.core.types.job import DONE, STARTED, Outcome, Run
from nemo_vfm.core.types.json_value import Json

REPLACED = "_replaced"  #: folder of what older versions of a step left
_MARKER_BYTES = 64 << 20
_MARKER_HELP = "delete it to run the step again, or choose another run_dir"


@dataclass(frozen=True, slots=True)
class StepFingerprint:
    """What a folder's content answers to."""

    before: str  #: a hash of everything that came before: the seed, and every earlier step
    own: str  #: a hash of the step's own part of the recipe

    @classmethod
    def of(cls, run: Run, before: str = "") -> "StepFingerprint":
        """Of a run's settings, inert keys left out."""
        own = json.dumps(_result_settings(run.settings))
        return cls(before or sha256_text(f"seed {run.seed}"), sha256_text(own))

    def after(self) -> str:
        """What comes before the next step."""
        return sha256_text(self.before + self.own)


def read_finished(folder: Path, fingerprint: StepFingerprint) -> Outcome | None:
    """What the step made of just this before; None where it did not, or is not done."""
    if not (folder / DONE).is_file():
        return None
    marker = _read_marker(folder / DONE, "before", "own", "summary", "figures")
    if (marker["before"], marker["own"]) != (fingerprint.before, fingerprint.own):
        return None
    return Outcome(marker["summary"], marker["figures"], did_nothing=True)


def _read_marker(file: Path, *keys: str) -> Json:
    try:
        found = read_json(file, _MARKER_BYTES)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); {_MARKER_HELP}") from error
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise UserError(f"{file} is not a step's marker, which has {', '.join(keys)}; {_MARKER_HELP}")
    return found


def prepare(folder: Path, fingerprint: StepFingerprint, title: str, set_aside: bool) -> bool:
    """Make the folder ready and say whether there is something to go on from."""
    earlier = start_record(folder)
    if earlier is None and folder.is_dir() and set_aside and any(folder.iterdir()):
        raise UserError(
            f"{folder} holds files that no step of this workflow wrote; move them, or choose another run_dir"
        )
    if earlier is not None and earlier["before"] != fingerprint.before and set_aside:
        number = 1  # results of days are not deleted because a line above them changed
        while (moved := folder.parent / REPLACED / f"{folder.name}-{number}").exists():
            number += 1
        moved.parent.mkdir(exist_ok=True)
        shutil.move(folder, moved)
        info(f"{title}: an earlier step has changed, so it runs again; its old folder is now {moved}")
        earlier = None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    spent = {key: value for key, value in (earlier or {}).items() if key == "seconds"}
    write_json(folder / STARTED, {**asdict(fingerprint), **spent})
    return earlier is not None


def start_record(folder: Path) -> Json:
    """What was asked for when it was begun; None where nothing was."""
    return _read_marker(folder / STARTED, "before", "own") if (folder / STARTED).is_file() else None


def _result_settings(settings: Json) -> Json:
    """The settings on which results depend. Inert keys, and where numbers go besides, make no finished step undone."""
    if isinstance(settings, Mapping):
        kept = {key: value for key, value in settings.items() if not is_inert(key) and key != "loggers"}
        return {key: _result_settings(value) for key, value in kept.items()}
    return [_result_settings(value) for value in settings] if isinstance(settings, list) else settings
