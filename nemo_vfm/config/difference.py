"""Finds the keys in which two recipes differ, and tells the harmless ones from the others."""

import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.core.log import warn
from nemo_vfm.core.recipe_keys import is_inert
from nemo_vfm.core.storage.files import read_json_object
from nemo_vfm.core.types.job import LAUNCH, LOCK, PARTS, RECORDS, STATUS

_ABSENT = object()
_NOTHING = "nothing"
_SAVING = ("metric", "mode", "copy_to")  # which checkpoint is best, and where copies go; this only below `checkpoint`
_LONGEST = 160
_MAX_SHOWN = 12  # differences
Path = tuple[str, ...]


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """`{key: (value there, value now)}`; where a run lies is not part of what it is."""
    old, new = dict(_flat(there)), dict(_flat(now))
    found: dict[str, tuple[str, str]] = {}
    for key in {**old, **new}:
        pair = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if key == ("run_dir",) or _equal(*pair):
            continue
        texts = [_text(value, quoted=False) for value in pair]
        # Where these are equal (1 and "1"), or look like ours for absence, with quotation marks.
        if texts[0] == texts[1] or any(isinstance(value, str) and value in (_NOTHING, "null") for value in pair):
            texts = [_text(value, quoted=True) for value in pair]
        there_text, now_text = (
            text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]} ... {text[-34:]}" for text in texts
        )
        found[address(key)] = there_text, now_text
    return found


def address(path: Path) -> str:
    """Keys joined by dots; one that holds a dot itself stands in quotes."""
    return ".".join(f'"{key}"' if "." in key or not key else key for key in path)


def is_harmless(key: str) -> bool:
    """Whether a run may go on with another value: its length, workers, logging, when it saves and what it keeps."""
    parts = key.split(".")
    # Other things have a duration too, such as a clip; a run's stands at the root or at the root of a step.
    length = re.fullmatch(r"(?:steps\.[^.]+\.)*(?:loop\.)?duration", key) is not None
    kept = parts[-2:-1] == ["checkpoint"] and parts[-1] in _SAVING
    return length or kept or any(is_inert(part) or part in ("logger", "loggers") for part in parts)


def accept(found: Mapping[str, tuple[str, str]], allowed: Sequence[str], folder: str) -> None:
    """Refuse a folder that holds another run.

    Raises:
        RunFolderError: a difference is neither harmless nor allowed; the text shows each.
    """
    for name in allowed:
        if not any(is_allowed(key, [name]) for key in found):
            there = f"; what differs is {', '.join(list(found)[:6])}" if found else ""
            warn(f"--allow {name}: nothing differs there from the run in {folder}{there}")
    refused = {key: pair for key, pair in found.items() if not (is_harmless(key) or is_allowed(key, allowed))}
    if "_target_" in refused:  # another job altogether, of which every key differs
        old, new = refused["_target_"]
        raise RunFolderError(f"{folder} holds the run of another recipe ({old}, and this one is {new}); choose another "
                             f"folder with run_dir=...")  # fmt: skip
    if refused:
        lines = [f"  {key}: {old} there, {new} now" for key, (old, new) in refused.items()]
        more = [f"  ... and {len(lines) - _MAX_SHOWN} more"] * (len(lines) > _MAX_SHOWN)
        raise RunFolderError(
            f"{folder} holds a run of a different recipe:\n{chr(10).join([*lines[:_MAX_SHOWN], *more])}\n"
            f"Choose another folder with run_dir=..., or resume anyway with "
            f"{' '.join(f'--allow {key}' for key in list(refused)[:4])}{' ...' if len(refused) > 4 else ''}"
        )


def made_nothing(folder: pathlib.Path) -> bool:
    """Whether a run failed and left only records of itself, as one does that a wrong path has ended at once."""
    if read_json_object(folder / STATUS).get("state") not in ("failed", "interrupted"):
        return False
    left = (path for path in folder.rglob("*") if not path.is_dir() and LAUNCH not in path.relative_to(folder).parts)
    return {path.name for path in left} <= {LOCK, *RECORDS} and not (folder / PARTS).exists()


def is_allowed(key: str, allowed: Sequence[str]) -> bool:
    """Whether a key, or what it lies below, was named."""
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def _equal(old: Any, new: Any) -> bool:
    """Equal, and not only because True is 1 to Python; 1 and 1.0 are one number."""
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_equal, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_equal(old[key], new[key]) for key in old)
    return bool(old == new)


def _text(value: Any, *, quoted: bool) -> str:
    if value is _ABSENT:
        return _NOTHING
    return json.dumps(value, default=str) if quoted or value is None or isinstance(value, bool) else str(value)


def _flat(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _flat(below, (*path, str(key)))
    elif path:
        yield path, value
