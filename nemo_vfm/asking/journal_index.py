"""Finds the lines of a journal's file by key, and passes over those that cannot be read."""

import json
import os
from pathlib import Path

from nemo_vfm.core.log import warn
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json


@no_component
class JournalIndex:
    """Where each key's last line is.

    Args:
        path: of the file, for messages.
        descriptor: of the file; whoever opened it closes it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._places: dict[str, tuple[int, int]] = {}  # key: (offset, bytes)
        self.end = 0  # of the last whole line
        self._read_all()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> Json | None:
        """The value of a key; None where there is none."""
        place = self._places.get(key)
        return None if place is None else json.loads(os.pread(self._descriptor, place[1], place[0]))["value"]

    def add(self, line: bytes) -> bool:
        """Note the next line of the file; False where it is none of ours."""
        place, self.end = (self.end, len(line)), self.end + len(line)
        match _entry(line):
            case {"key": str(key), "forgotten": True}:
                self._places.pop(key, None)
            case {"key": str(key), "value": _}:
                self._places[key] = place
            case _:
                return False
        return True

    def _read_all(self) -> None:
        unreadable = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                unreadable += not self.add(line)
        if unreadable:
            warn(f"{self._path}: {unreadable} lines cannot be read; their questions are asked again")


def _entry(line: bytes) -> Json:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
