"""Writes samples as deterministic WebDataset tars with an index, and reads their members by offset.

A folder holds `shard-000000.tar` and beside it `shard-000000.json`: where each member lies, and the numbers that
buckets need. `shards.json` is written last: without it the folder is not finished. Tars of others, without our index,
are listed by their headers.
"""

import hashlib
import os
import re
import shutil
import tarfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file, sync, write_json
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.shards.clip_id import is_key
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_folder import (
    INDEX_SCHEMA,
    SHARDS_SCHEMA,
    Buffers,
    Entry,
    LocalShard,
    MemberSpan,
    OpenShard,
    SampleRecord,
    ShardRecord,
    folder_at,
    indexed_entries,
    listed_entries,
    read_shards_json,
)
from nemo_vfm.data.shards.tar_members import BLOCK, MAX_MEMBER_BYTES, REFUSED_EXTENSIONS

__all__ = ["Entry", "ShardSet", "ShardWriter", "verify"]

_OURS = re.compile(r"shard-\d{6}\.(tar|tar\.idx|json)|\.shard-\d{6}\.\d+\.tmp\.tar")
_EXTENSION = re.compile(r"[a-z0-9][a-z0-9_]*(\.[a-z0-9][a-z0-9_]*)*")
_MAX_OPEN_FILES = 64
_WORTH_READING = 64 << 10  # bytes between two members that cost less than a second request


@no_component
class ShardWriter:
    """Writes shards in the order of the calls; equal calls give equal bytes. Not finished until `close`.

    Shards that an earlier run left in the folder are removed: the folder belongs to its writer.

    Args:
        folder: where to; made if need be.
        samples_per_shard: a new tar after this many samples.
        max_shard_bytes: or before a tar would grow beyond this.
    """

    def __init__(self, folder: Path, *, samples_per_shard: int = 512, max_shard_bytes: int = 1 << 30) -> None:
        if samples_per_shard < 1 or max_shard_bytes < BLOCK:
            raise ValueError(
                f"a shard needs a size above 0, got {samples_per_shard} samples and {max_shard_bytes} bytes"
            )
        self._folder, self._samples_per_shard, self._max_shard_bytes = folder, samples_per_shard, max_shard_bytes
        self._keys: set[str] = set()
        self._done: list[ShardRecord] = []
        self._samples: list[SampleRecord] = []
        self._file: IO[bytes] | None = None
        self._hash, self._position = hashlib.sha256(), 0
        folder.mkdir(parents=True, exist_ok=True)
        # The marker goes first: a folder half replaced must not look finished.
        for path in [folder / "shards.json", *sorted(p for p in folder.iterdir() if _OURS.fullmatch(p.name))]:
            path.unlink(missing_ok=True)
        # What `energon.py` wrote beside shards that are no more: energon would read the new ones by the old offsets.
        meta = folder / ".nv-meta"
        if meta.is_dir() and not meta.is_symlink():
            (folder / "energon.yaml").unlink(missing_ok=True)
            shutil.rmtree(meta)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._file is not None:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def write(self, key: str, members: Mapping[str, bytes], index: Mapping[str, Json]) -> None:
        """Add one sample.

        Args:
            key: unique; letters, digits, `-` and `_`.
            members: extension -> bytes, such as `latents.safetensors`; written in alphabetical order.
            index: JSON values a reader needs before it opens the sample.

        Raises:
            UserError: the key or an extension cannot be written, or the key was written before.
        """
        if not is_key(key):
            raise UserError(f"{key!r} cannot name a sample: use up to 90 letters, digits, '-' and '_'")
        if key in self._keys:
            raise UserError(f"sample {key} is written twice; keys must be unique in a folder of shards")
        if not members:
            raise UserError(f"sample {key} has no members, expected at least one")
        for name, data in members.items():
            if not _EXTENSION.fullmatch(name) or name.rsplit(".", 1)[-1] in REFUSED_EXTENSIONS or len(name) > 64:
                raise UserError(f"{name!r} cannot be an extension of sample {key}: use one such as 'mp4' or 'json'")
            if len(f"{key}.{name}") > 100 or len(data) > MAX_MEMBER_BYTES:
                raise UserError(f"{key}.{name} of {len(data):,} bytes is too long for a tar; shorten its name or bytes")
        size = sum(BLOCK + len(data) + -len(data) % BLOCK for data in members.values())
        if self._samples and (
            len(self._samples) >= self._samples_per_shard or self._position + size > self._max_shard_bytes
        ):
            self._finish_shard()
        if self._file is None:
            self._file, self._hash, self._position = self._temporary.open("wb"), hashlib.sha256(), 0
        places: dict[str, list[int]] = {}
        for name, data in sorted(members.items()):
            places[name] = [self._position + BLOCK, len(data)]
            info = tarfile.TarInfo(f"{key}.{name}")  # no time, owner or machine, so equal members give equal bytes
            info.size, info.mtime, info.mode = len(data), 0, 0o644
            for part in (info.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % BLOCK)):
                self._put(part)
        crcs = [zlib.crc32(members[name]) for name in places]
        self._samples.append({"key": key, "members": places, "crc32": crcs, "index": dict(index)})
        self._keys.add(key)

    def close(self) -> None:
        """Finish the last shard and write `shards.json`."""
        if self._samples:
            self._finish_shard()
        write_json(
            self._folder / "shards.json",
            {
                "schema": SHARDS_SCHEMA,
                "num_samples": sum(shard["num_samples"] for shard in self._done),
                "bytes": sum(shard["bytes"] for shard in self._done),
                "shards": self._done,
            },
        )

    @property
    def _temporary(self) -> Path:
        return self._folder / f".shard-{len(self._done):06d}.{os.getpid()}.tmp.tar"

    def _put(self, part: bytes) -> None:
        assert self._file is not None
        self._file.write(part)
        self._hash.update(part)
        self._position += len(part)

    def _finish_shard(self) -> None:
        assert self._file is not None
        self._put(bytes(2 * BLOCK))
        self._put(bytes(-self._position % (20 * BLOCK)))  # whole records, as every tar has
        self._file.close()
        name = f"shard-{len(self._done):06d}"
        sync(self._temporary)
        self._temporary.replace(self._folder / f"{name}.tar")
        index = {"schema": INDEX_SCHEMA, "bytes": self._position, "samples": self._samples}
        write_json(self._folder / f"{name}.json", index)
        self._done.append(
            {
                "name": f"{name}.tar",
                "sha256": self._hash.hexdigest(),
                "bytes": self._position,
                "num_samples": len(self._samples),
                "index_sha256": sha256_file(self._folder / f"{name}.json"),
            }
        )
        self._file, self._samples, self._position = None, [], 0


@no_component
class ShardSet:
    """A folder of shards, opened: what is in it is known, and members are read by offset, never unpacked.

    Safe to use from threads, after a fork, and to send to another process.

    Args:
        folder: with `shards.json`, or, on a disk, with anyone's WebDataset tars, which are listed by their headers.
        cache: keeps whole shards of an object store on the disk; None reads them by ranges of bytes.
        only: names of tars; None takes all.
        verify: the bytes of members are compared with their checksums, each time they are read.

    Raises:
        UserError: there is no such folder, it holds no tar, not those that are named, or no checksums to verify by.
        DataError: an index does not fit its tar.
    """

    def __init__(
        self, folder: Place, cache: ShardCache | None = None, *, only: Set[str] | None = None, verify: bool = False
    ) -> None:
        self.folder = place(folder)
        self._source = folder_at(self.folder, cache)
        self._files: OrderedDict[str, OpenShard] = OrderedDict()
        self._lock, self._pid, self._remote = threading.Lock(), os.getpid(), isinstance(self.folder, Address)
        self._hashes: dict[str, str] = {}
        if self._source.size("shards.json") is not None:
            shards = read_shards_json(self.folder, self._source)
            if only is not None and (missing := only - {shard["name"] for shard in shards}):
                raise UserError(f"{self.folder} has no {min(missing)}; {len(missing)} of {len(only)} named are missing")
            shards = [shard for shard in shards if only is None or shard["name"] in only]
            self._hashes = {shard["name"]: shard["sha256"] for shard in shards}
            entries = indexed_entries(self.folder, self._source, shards)
        elif isinstance(self.folder, Path):
            entries = listed_entries(self.folder, only)
        else:
            raise UserError(
                f"{self.folder} has no shards.json, so it is unfinished, or its tars come from elsewhere. Such tars "
                "are indexed by reading all their headers, which needs them on a disk; StreamedTars reads them from "
                "the store"
            )
        self.entries: tuple[Entry, ...] = tuple(entries)
        self._stamps = {shard: self._source.stamp(shard) for shard in {entry.shard for entry in self.entries}}
        self.verify = verify
        if verify and (without := [entry for entry in self.entries if not entry.crcs and entry.members]):
            raise UserError(
                f"{self.folder} has no checksums for {len(without)} samples, the first of which is "
                f"{without[0].key} in {without[0].shard}: tars from elsewhere and from older versions have none. "
                f"Write them again, or set verify=false"
            )
        self._touched = {shard: self._source.ctime_ns(shard) for shard in self._stamps} if verify else {}

    @property
    def is_indexed(self) -> bool:
        """Whether our index names the samples; those of other tars are named by whoever wrote them."""
        return bool(self._hashes)

    def __len__(self) -> int:
        return len(self.entries)

    def __getstate__(self) -> dict[str, object]:
        names = ("folder", "entries", "verify", "_source", "_hashes", "_stamps", "_touched", "_remote")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _files=OrderedDict(), _lock=threading.Lock(), _pid=os.getpid())

    def read(self, entry: Entry, extension: str) -> bytes:
        """The bytes of one member.

        Raises:
            DataError: the sample has no such member, the tar ends before it does, or its bytes are not those written.
            Changed: they are not, and the tar was written to since it was listed.
            StoreError: the object store does not answer.
        """
        return self.check_bytes(entry, extension, self._read(entry, extension, *self._place(entry, extension)))

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """Several members; what lies side by side in an object store is asked for once."""
        spans = self.spans(entry, extensions)
        if len(spans) == len(extensions):
            return [
                self.check_bytes(entry, name, self._read(entry, name, *where))
                for name, where in zip(extensions, spans, strict=True)
            ]
        ((first, length),) = spans
        data = self._read(entry, ", ".join(extensions), first, length)
        places = [self._place(entry, extension) for extension in extensions]
        parts = [data[offset - first : offset - first + size] for offset, size in places]
        return [self.check_bytes(entry, name, part) for name, part in zip(extensions, parts, strict=True)]

    def locate(self, entry: Entry, extensions: Sequence[str]) -> tuple[LocalShard, MemberSpan] | None:
        """See `ReadsInPlace`."""
        places = [self._place(entry, extension) for extension in extensions]
        first = places[0][0]
        found = _gaps(tuple([(offset - first, size) for offset, size in places]))
        file = self._file(entry.shard) if found is not None else None
        return (file, MemberSpan(first, *found)) if found is not None and isinstance(file, LocalShard) else None

    def check(self, entry: Entry, extensions: Sequence[str], members: Sequence[Buffers], missing: int) -> None:
        """See `ReadsInPlace`."""
        if missing:
            raise self._too_short(entry, ", ".join(extensions))
        for extension, parts in zip(extensions, members, strict=True) if self.verify else ():
            self._compare(entry, extension, parts)

    def check_bytes(self, entry: Entry, extension: str, data: bytes) -> bytes:
        """The bytes of a member, compared with their checksum where that is asked for. Raises as `read` does."""
        self._compare(entry, extension, [data])
        return data

    def _compare(self, entry: Entry, extension: str, parts: Sequence[bytes | bytearray | NDArray[np.uint8]]) -> None:
        if not self.verify:
            return
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)  # type: ignore[arg-type]  # numpy's arrays are buffers
        if crc == entry.crc(extension):
            return
        tar = self.folder / entry.shard
        # No program can set this time back: size and time of the last change may be those of before.
        if self._source.ctime_ns(entry.shard) != self._touched[entry.shard]:
            raise ShardChanged(f"{tar} changed during training; restart, and write new shards elsewhere")
        raise DataError(
            f"{entry.key}.{extension} in {tar} does not match its checksum: the disk damaged it, or the "
            f"tar was replaced; write the shards again"
        )

    def spans(self, entry: Entry, extensions: Sequence[str]) -> list[tuple[int, int]]:
        """(offset, size) of what `read_all` asks for: every member, or all of them and what lies between."""
        places = [self._place(entry, extension) for extension in extensions]
        first, last = min(places)[0], max(offset + size for offset, size in places)
        if self._remote and last - first <= sum(size for _, size in places) + _WORTH_READING:
            return [(first, last - first)]
        return places

    def read_span(self, entry: Entry, offset: int, size: int) -> bytes:
        """So many bytes of the sample's tar from an offset on. Raises as `read` does."""
        return self._read(entry, f"bytes {offset:,} on", offset, size)

    @staticmethod
    def _place(entry: Entry, extension: str) -> tuple[int, int]:
        where = entry.members.get(extension)
        if where is None:
            raise DataError(f"sample {entry.key} in {entry.shard} has no {extension}, only {', '.join(entry.members)}")
        return where

    def _read(self, entry: Entry, name: str, offset: int, size: int) -> bytes:
        try:
            file = self._file(entry.shard)  # held while it is read: another thread may push it out
            data = file.read(offset, size)
        except OSError as error:
            raise DataError(f"{self.folder / entry.shard} cannot be read: {error}") from error
        if len(data) != size:
            raise self._too_short(entry, name)
        return data

    def _too_short(self, entry: Entry, name: str) -> DataError:
        return DataError(f"{self.folder / entry.shard} ends inside {entry.key}.{name}; write the shards again")

    def close(self) -> None:
        """Let go of the tars; a later read opens them again."""
        with self._lock:
            self._files.clear()

    def _file(self, shard: str) -> OpenShard:
        if self._remote and self._pid != os.getpid():  # a fork: the connections are the parent's
            self._files, self._lock, self._pid = OrderedDict(), threading.Lock(), os.getpid()
        with self._lock:
            file = self._files.get(shard)
        if file is not None:
            return file
        # Opened without holding the lock: it may take a request, or the download of a whole shard.
        file = self._source.open(shard, self._hashes.get(shard, ""), self._stamps.get(shard))
        with self._lock:
            if len(self._files) >= _MAX_OPEN_FILES:
                self._files.popitem(last=False)
            return self._files.setdefault(shard, file)


@lru_cache(maxsize=1024)
def _gaps(places: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], int] | None:
    """Bytes before each place, and of the whole; None where they are in another order, or far apart."""
    ends = [0, *[offset + size for offset, size in places]]
    gaps = tuple(offset - end for (offset, _), end in zip(places, ends, strict=False))
    return (gaps, ends[-1]) if all(0 <= gap <= _WORTH_READING for gap in gaps) else None


def verify(folder: Path) -> list[str]:
    """Read every byte of a folder of shards and say, a sentence each, where it differs from `shards.json`."""
    problems = []
    for shard in read_shards_json(folder):
        path = folder / shard["name"]
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif sha256_file(path) != shard["sha256"]:
            problems.append(f"{path} does not match its checksum")
    return problems
