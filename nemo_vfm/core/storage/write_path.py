"""Marks the arguments of components that name what a run writes, and keeps the files of others from being changed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nemo_vfm.core.errors import UserError


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Marks an argument whose file or folder is written: see `WritePath`."""

    changes: bool = False  #: whether it must be there already


#: A file or folder that a component creates, changes or deletes. A recipe may name one below the working directory or
#: in the run folder; elsewhere the user must have typed or allowed it (docs/how-to/clusters/permissions.md).
WritePath = Annotated[Path, WriteMark()]
#: The same of one that the component does not create.
ChangedPath = Annotated[Path, WriteMark(changes=True)]


def require_own(path: Path, beginning: bytes, what: str) -> None:
    """Refuse to change a file that does not have the beginning of ours; a missing or an empty one is nobody's.

    Raises:
        UserError: it is not `what` (words with their article), or it is no regular file.
    """
    if not path.exists():
        return
    found = b""
    if path.is_file():
        with path.open("rb") as file:
            found = file.read(len(beginning))
        if not found:
            return
    if not found or not beginning.startswith(found):
        raise UserError(f"{path} is not {what}, so it is not changed; choose another file")
