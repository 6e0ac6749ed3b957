"""Checks that a probed file still holds the bytes that its clips are named after."""

import os
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.clip_id import source_id


def state_of(path: Path) -> str:
    """What changes when a file does, told without reading it; empty where there is no file.

    The time of the inode's change is in it: programs that copy files set the other times to what they were.
    """
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


class Unchanged:
    """Tells a file that is written to, exchanged or removed while a curation works on it.

    Args:
        request: `path`, `name` and `source_id`, and as `state` what `state_of` said when it was probed; empty where the
            file is a fetched one, whose bytes were compared as they came.
    """

    def __init__(self, request: Json) -> None:
        self._path, self._name = Path(request["path"]), str(request["name"])
        self._source_id, self._state = request["source_id"], request["state"]

    def why_not(self) -> str | None:
        """A sentence where the bytes are others by now. They are read only where the state differs: a touch is none."""
        if not self._state or (state := state_of(self._path)) == self._state:
            return None
        try:
            same = source_id(self._path) == self._source_id
        except OSError as error:
            return f"{self._name} can no longer be read ({os.strerror(error.errno or 0)}); run it again"
        if not same:
            return f"{self._name} was changed after it was examined; run again"
        self._state = state
        return None

    def check(self) -> None:
        """Raise DataError where the bytes are others by now."""
        if (why := self.why_not()) is not None:
            raise DataError(why)
