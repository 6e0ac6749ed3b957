"""Keeps the id under which a tracker knows a run, so that a resume has the same one."""

import json
import secrets
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json, sha256_text, write_json


def find(file: Path, *owner: str | None) -> str | None:
    """The number that was kept for an owner, such as a server and a project; or None. UserError if it is damaged."""
    if not file.is_file():
        return None
    try:
        found = read_json(file).get(_key(owner))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error}); delete it to start a new run there") from error
    return None if found is None else str(found)


def keep(file: Path, *owner: str | None, number: str) -> None:
    """Keep a number beside those of other owners."""
    write_json(file, {**(read_json(file) if file.is_file() else {}), _key(owner): number})


def find_or_make(file: Path, *owner: str | None) -> str:
    """The number that was kept, or a new one that is kept before anybody uses it."""
    number = find(file, *owner) or secrets.token_hex(6)
    keep(file, *owner, number=number)
    return number


def _key(owner: tuple[str | None, ...]) -> str:
    """A hash: a server's address may come from the environment, and what does is not written down."""
    return sha256_text(json.dumps(owner))[:16]
