"""Checks the files that `cluster.secrets` names, and reads a secret from a file's first line."""

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from nemo_vfm.core.errors import UserError


def value(name: str, file: Path) -> str:
    """The secret: the first line of its file."""
    if why := _objection(file):
        raise UserError(f"cluster.secrets.{name}: {why}")
    return file.read_text(encoding="utf-8").partition("\n")[0]


def objections(secrets: Mapping[str, Path]) -> Iterator[str]:
    """A sentence for each file that no job should take a secret from."""
    for name, file in secrets.items():
        if why := _objection(file):
            yield f"cluster.secrets.{name}: {why}"


def _objection(file: Path) -> str:
    if not file.is_absolute():
        return f"{file} is not an absolute path, but the job starts in another folder"
    try:
        mode = file.stat().st_mode
        first = file.read_bytes().partition(b"\n")[0] if stat.S_ISREG(mode) else b""
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    if mode & 0o077:
        return f"{file} is readable by others (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
    return "" if first.strip() else f"{file} is empty in its first line"
