"""Fetches videos from an object store as local files for as long as they are needed, within a byte limit."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.shards.sample_members import CAPTION_SUFFIXES, texts_beside_media

_MAX_SIDECAR_BYTES = 64 << 20
_AT_ONCE = 8
_LONG_NAME = 200  # bytes; a file may have 255, and `.txt` comes behind a video's


@no_component
class FetchedFile:
    """Fetches objects when they are asked for and forgets those that nobody holds, the oldest first.

    Args:
        address: the folder in the store.
        folder: where fetched files lie; it belongs to this class.
        max_bytes: what they may fill together; who asks for more waits until others let go.
    """

    def __init__(self, address: Address, folder: Path, max_bytes: int) -> None:
        self._address, self._folder, self._max_bytes = address, folder, max_bytes
        self._changed = threading.Condition()
        self._sizes: dict[Path, int] = {}  # of what is on the disk or on its way, the last used last
        self._held: Counter[Path] = Counter()
        self._hashes: dict[Path, str] = {}
        self._fetching: dict[Path, threading.Lock] = {}
        for path in sorted(folder.rglob("*"), key=lambda path: path.name) if folder.is_dir() else ():
            if path.is_file() and path.suffix.lower() not in CAPTION_SUFFIXES and not path.name.startswith("."):
                self._sizes[path] = path.stat().st_size

    def path(self, item: object_store.Item) -> Path:
        """Where a file will lie: another version of an object is another file."""
        name = "/".join(map(_short, item.name.split("/")))
        return self._folder / sha256_text(f"{item.stamp} {item.size}")[:12] / name

    def fetch_sidecars(self, videos: Sequence[object_store.Item], others: Sequence[object_store.Item]) -> None:
        """Put the text and JSON files beside videos where the videos will lie: small, and kept."""
        by_name = defaultdict[str, list[object_store.Item]](list)
        for item in others:
            stem, dot, suffix = item.name.rpartition(".")
            by_name[stem + dot + suffix.lower()].append(item)
        wanted = []
        for video in videos:
            path = self.path(video)
            for name, here in zip(texts_beside_media(video.name), texts_beside_media(path.name), strict=True):
                items = by_name.get(name, [])[:1]
                wanted += [(item, path.with_name(here).with_suffix(Path(item.name).suffix)) for item in items]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sidecars") as threads:
            list(threads.map(lambda pair: self._sidecar(*pair), wanted))

    def _sidecar(self, item: object_store.Item, path: Path) -> None:
        if item.size > _MAX_SIDECAR_BYTES:
            warn(f"{self._address / item.name} is not used for captions: it has {item.size:,} bytes")
        else:
            object_store.download(self._address / item.name, path)

    @contextmanager
    def held(self, item: object_store.Item) -> Iterator[Path]:
        """The object as a local file that stays while the block runs.

        Raises:
            DataError: it has vanished, is larger than all the room there is, or is no longer what it was before.
            StoreError: the store does not answer, or refuses us.
        """
        path = self.path(item)
        self._take(path, item)
        try:
            with self._fetching.setdefault(path, threading.Lock()):
                self._ensure(path, item)
            yield path
        finally:
            with self._changed:
                self._held[path] -= 1
                if not path.is_file():
                    self._sizes.pop(path, None)
                self._changed.notify_all()

    def _take(self, path: Path, item: object_store.Item) -> None:
        """Wait for room, make it, and count the file as held."""
        if item.size > self._max_bytes:
            raise DataError(f"{self._address / item.name} has {item.size:,} bytes; raise max_fetched_gb")
        with self._changed:
            while path not in self._sizes and not self._has_room(item.size):
                self._changed.wait()
            self._sizes[path] = self._sizes.pop(path, item.size)
            self._held[path] += 1

    def _has_room(self, size: int) -> bool:
        for path in list(self._sizes):
            if sum(self._sizes.values()) + size <= self._max_bytes:
                return True
            if not self._held[path]:
                path.unlink(missing_ok=True)
                del self._sizes[path]
        return sum(self._sizes.values()) + size <= self._max_bytes

    def _ensure(self, path: Path, item: object_store.Item) -> None:
        if not path.is_file() or path.stat().st_size != item.size:
            object_store.download(self._address / item.name, path, sha256=self._hashes.get(path))
        if path not in self._hashes:
            self._hashes[path] = sha256_file(path)


def _short(part: str) -> str:
    """A part of an object's name as the name of a file, which may not be as long."""
    return part if len(part.encode()) <= _LONG_NAME else f"{sha256_text(part)[:32]}{PurePosixPath(part).suffix[:16]}"
