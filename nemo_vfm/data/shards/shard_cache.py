"""Caches whole shards of an object store on the local disk, checked by hash, within a number of bytes."""

import os
import re
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn, warn_once
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.storage.uri import Address, local
from nemo_vfm.core.storage.write_path import WritePath

_ABANDONED_S = 3600.0
_OURS = re.compile(r"[0-9a-f]{64}\.tar|\.[0-9a-f]{64}\.\d+\.tmp\.tar")  # whatever else the folder holds is somebody's


class ShardCache:
    """Keeps whole shards of an object store on the local disk, the last used ones, named by their hash.

    Ranks of one machine, runs and data sets may share the folder. Worth it where an epoch is read more than once over
    a slow line; the first batches wait for whole shards.

    Args:
        folder: where; only shards that it has fetched, which are named by their hash, are deleted.
        max_gb: how many GB (10^9 bytes) of shards are kept at most; a shard larger than that is read by ranges.
    """

    def __init__(self, *, folder: WritePath, max_gb: float) -> None:
        if max_gb <= 0:
            raise ValueError(f"max_gb must be above 0, got {max_gb:g}")
        self.folder, self.max_gb = local(folder, "the folder of a cache"), max_gb
        self._locks: dict[str, threading.Lock] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # without the locks
        return partial(ShardCache, folder=self.folder, max_gb=self.max_gb), ()

    def holds(self, num_bytes: int) -> bool:
        """Whether a shard of this size is kept at all."""
        if num_bytes > self.max_gb * 1e9:
            warn_once(
                f"shards of {num_bytes:,} bytes do not fit a cache of {self.max_gb:g} GB, so byte ranges are read"
            )
            return False
        return True

    def fetch(self, address: Address, sha256: str, num_bytes: int) -> Path:
        """The shard on the disk, fetched where it is not there yet. A reader that has it open keeps it.

        Raises:
            DataError: the store gives other bytes than were written, twice.
        """
        from nemo_vfm.core.storage import object_store

        path = self.folder / f"{sha256}.tar"
        with self._locks.setdefault(sha256, threading.Lock()):  # threads of one process do not fetch it twice
            while not (self._has(path, sha256, num_bytes) and self._mark_used(path)):
                self._make_room(num_bytes, path)
                try:
                    object_store.download(address, path, sha256=sha256)
                except DataError as error:
                    warn(f"{error}; retrying once")
                    object_store.download(address, path, sha256=sha256)
                if self._mark_used(path):
                    break
        return path

    @staticmethod
    def _mark_used(path: Path) -> bool:
        """False where another process has just deleted it: hashing a gigabyte takes long enough for that."""
        try:
            os.utime(path)  # and not touch, which would make an empty shard of it
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _has(path: Path, sha256: str, num_bytes: int) -> bool:
        """Whether it is there and whole: a shard that the disk has damaged is fetched again."""
        if not path.is_file() or path.stat().st_size != num_bytes:
            return False
        if sha256_file(path) == sha256:
            return True
        warn(f"{path} was damaged on this disk and is fetched again")
        return False

    def _make_room(self, num_bytes: int, wanted: Path) -> None:
        """Delete the shards that were not used for longest. Another process may delete them at the same time."""
        for left in self.folder.glob(".*.tmp.tar"):  # of downloads that were killed; one under way is written to
            with suppress(FileNotFoundError):
                if _OURS.fullmatch(left.name) and time.time() - left.stat().st_mtime > _ABANDONED_S:
                    left.unlink()
        kept = [path for path in self.folder.glob("[!.]*.tar") if path != wanted and _OURS.fullmatch(path.name)]
        by_age = []
        for path in kept:
            try:
                by_age.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            except FileNotFoundError:
                continue
        room = self.max_gb * 1e9 - num_bytes - sum(size for _, size, _ in by_age)
        for _, size, path in sorted(by_age):
            if room >= 0:
                return
            path.unlink(missing_ok=True)
            room += size
