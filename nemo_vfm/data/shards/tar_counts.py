"""Remembers how many samples each tar holds, also across a resume if the tar has kept its size."""

import json
from pathlib import Path

from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.write_path import require_own
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.shards.tar_stream import Tar

COUNTS_SCHEMA = "nemo_vfm.tar_counts/2"  # 1 counted fewer names of members
_BEGINNING = b'{\n "schema": "nemo_vfm.tar_counts/'  # of every version
_MAX_BYTES = 256 << 20


@no_component
class TarCounts:
    """Counts by tar, in memory, and in a file where one is given.

    Args:
        path: the file; None forgets at the end.

    Raises:
        UserError: it is a file of another kind.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            require_own(path, _BEGINNING, "a file of tar counts")
        self._path = path
        self._counts: dict[str, tuple[int | None, int]] = _read(path)
        self._sizes: dict[str, int | None] = {}

    def get(self, tar: Tar) -> int | None:
        """How many samples it has; None where nobody knows, or it has another size than when they were counted."""
        size, count = self._counts.get(tar.name, (None, None))
        return count if count is not None and size == self._size(tar) else None

    def put(self, tar: Tar, count: int) -> None:
        """Note what was counted up to the tar's end."""
        if self._counts.get(tar.name) == (self._size(tar), count):
            return
        self._counts[tar.name] = self._size(tar), count
        if self._path is not None:
            write_json(self._path, {"schema": COUNTS_SCHEMA, "tars": {n: list(c) for n, c in self._counts.items()}})

    def _size(self, tar: Tar) -> int | None:
        if tar.name not in self._sizes:
            self._sizes[tar.name] = tar.size()
        return self._sizes[tar.name]


def _read(path: Path | None) -> dict[str, tuple[int | None, int]]:
    if path is None or not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        content = json.loads(path.read_bytes())
        if content["schema"] != COUNTS_SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        return {str(name): (size, count) for name, (size, count) in content["tars"].items() if _sound(size, count)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warn(f"{path} is ignored ({error}), and the tars are counted again")
        return {}


def _sound(size: object, count: object) -> bool:
    return type(count) is int and count >= 0 and (size is None or type(size) is int)
