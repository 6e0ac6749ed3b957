"""Opens a folder of shards, on a local disk or in an object store, behind one protocol."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.batching.faults import Changed
from nemo_vfm.data.shards.shard_cache import ShardCache


class OpenShard(Protocol):
    """One tar, open."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset` on; fewer than `size` where the tar ends. OSError or DataError where it fails."""
        ...


class ShardFolder(Protocol):
    """What reading shards asks of a folder."""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        ...

    def read(self, name: str, max_bytes: int) -> bytes:
        """A whole file. OSError or DataError where that fails."""
        ...

    def stamp(self, name: str) -> tuple[int, int] | None:
        """What changes when a tar does: bytes and time of the last change, in ns; None where nothing tells."""
        ...

    def touched(self, name: str) -> int | None:
        """When anything about a tar was changed last, in ns, which nobody can set; None where nothing tells."""
        ...

    def open(self, name: str, sha256: str, stamp: tuple[int, int] | None) -> OpenShard:
        """A tar, for reading members; `sha256` is what shards.json says of it, `stamp` what it was when listed."""
        ...


class LocalFolder:
    """A folder on a disk."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UserError(f"there is no folder of shards {path}; run the step that writes it first")
        self.path = path

    def size(self, name: str) -> int | None:
        """See `ShardFolder.size`."""
        file = self.path / name
        return file.stat().st_size if file.is_file() else None

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `ShardFolder.read`."""
        file = self.path / name
        if file.stat().st_size > max_bytes:
            raise DataError(f"{file} has more than {max_bytes:,} bytes")
        return file.read_bytes()

    def stamp(self, name: str) -> tuple[int, int] | None:
        """See `ShardFolder.stamp`."""
        return _stamp((self.path / name).stat())

    def touched(self, name: str) -> int | None:
        """See `ShardFolder.touched`."""
        try:
            return (self.path / name).stat().st_ctime_ns
        except OSError:
            return None

    def open(self, name: str, sha256: str, stamp: tuple[int, int] | None) -> OpenShard:
        """See `ShardFolder.open`."""
        return LocalShard(self.path / name, stamp)


@no_component
class LocalShard:
    """A descriptor that closes itself after its last user. Reads by offset move nothing, so forks may share it.

    Args:
        path: of the tar.
        stamp: what it was when it was listed, bytes and time of change in ns; None does not look.
    """

    def __init__(self, path: Path, stamp: tuple[int, int] | None = None) -> None:
        self._path, self._stamp = path, stamp
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """See `OpenShard.read`. One that was renamed over is still the one that was opened."""
        self.require_unchanged()
        return os.pread(self._descriptor, size, offset)

    def read_into(self, offset: int, buffers: Sequence[bytearray | NDArray[np.uint8]]) -> int:
        """Fill the buffers in order; the number of bytes read, fewer where the tar ends. Does not look for changes."""
        return os.preadv(self._descriptor, buffers, offset)  # type: ignore[arg-type]  # numpy's arrays are buffers

    def require_unchanged(self) -> None:
        """Raise Changed where its bytes are others than when it was listed."""
        if self._stamp is not None and _stamp(os.fstat(self._descriptor)) != self._stamp:
            raise Changed(f"{self._path} changed during training; restart, and write new shards elsewhere")


class StoredFolder:
    """A folder in an object store: listed once, then read by ranges of bytes, or from whole shards kept on the disk.

    Args:
        address: where.
        cache: keeps whole shards; None keeps none.
    """

    def __init__(self, address: Address, cache: ShardCache | None) -> None:
        self.address, self._cache = address, cache
        if not self._sizes:
            raise UserError(f"nothing exists at {address}; run the step that writes the shards first")

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {item.name: item.size for item in object_store.items(self.address)}

    def size(self, name: str) -> int | None:
        """See `ShardFolder.size`."""
        return self._sizes.get(name)

    def stamp(self, name: str) -> tuple[int, int] | None:
        """None: shards of ours in a store are named by what is in them, and never overwritten."""
        return None

    def touched(self, name: str) -> int | None:
        """See `stamp`."""
        return None

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `ShardFolder.read`."""
        data = object_store.read(self.address / name, max_bytes=max_bytes)
        if data is None:
            raise DataError(f"there is no {self.address / name}")
        return data

    def open(self, name: str, sha256: str, stamp: tuple[int, int] | None) -> OpenShard:
        """See `ShardFolder.open`."""
        size = self._sizes.get(name, 0)
        if self._cache is not None and self._cache.holds(size):
            return LocalShard(self._cache.fetch(self.address / name, sha256, size))
        return object_store.Ranges(self.address / name)


def folder_at(place: Place, cache: ShardCache | None) -> ShardFolder:
    """The folder at a place.

    Raises:
        UserError: there is none.
    """
    return StoredFolder(place, cache) if isinstance(place, Address) else LocalFolder(place)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
