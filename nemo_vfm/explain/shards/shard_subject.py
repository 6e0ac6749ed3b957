"""Tells whether a user's text names a place of shards, and which."""

from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Place, place


def shards_named(word: str) -> Place | None:
    """A folder with shards.json or tars, a tar, several by braces, or an address in an object store.

    Raises:
        UserError: it is written like a path or an address, and there are no shards.
    """
    try:
        where = place(word)
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(where, Path) or word.endswith(".tar"):
        return where
    if is_folder_of_shards(where):
        return where
    if where.is_dir() and (where / "shards" / "shards.json").is_file():
        raise UserError(f"{where} is not a folder of shards, {where / 'shards'} is")
    if len(where.parts) > 1 and where.parent.is_dir():
        there = "holds neither shards.json nor a .tar" if where.is_dir() else "does not exist"
        raise UserError(f"{where} {there}; give a folder of shards, a .tar, or an address such as s3://bucket/folder")
    return None


def is_folder_of_shards(where: Path) -> bool:
    """Whether there are shards directly in it."""
    return (where / "shards.json").is_file() or next(where.glob("*.tar"), None) is not None
