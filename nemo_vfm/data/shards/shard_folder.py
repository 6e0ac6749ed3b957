"""Opens a folder of shards, on a disk or in an object store, and lists its samples: from our index, or from any tar."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.shards.clip_id import is_key
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.tar_members import MAX_MEMBER_BYTES, REFUSED_EXTENSIONS, index_tar

SHARDS_SCHEMA = "nemo_vfm.shards/1"
INDEX_SCHEMA = "nemo_vfm.shard_index/1"
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.tar")
_MAX_INDEX_BYTES = 2 << 30
_AT_ONCE = 16
#: What one call fills, in order.
Buffers = Sequence[bytearray | NDArray[np.uint8]]


class MemberSpan(NamedTuple):
    """Members that lie near each other: where the first begins, bytes before each, and bytes of the whole."""

    offset: int
    gaps: tuple[int, ...]
    size: int


class LocalFolder:
    """A folder on a disk."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UserError(f"there is no folder of shards {path}; run the step that writes it first")
        self.path = path

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        file = self.path / name
        return file.stat().st_size if file.is_file() else None

    def read(self, name: str, max_bytes: int) -> bytes:
        """A whole file. OSError or DataError where that fails."""
        file = self.path / name
        if file.stat().st_size > max_bytes:
            raise DataError(f"{file} has more than {max_bytes:,} bytes")
        return file.read_bytes()

    def stamp(self, name: str) -> tuple[int, int] | None:
        """What changes when a tar does: bytes and time of the last change, in ns; None where nothing tells."""
        return _stamp((self.path / name).stat())

    def ctime_ns(self, name: str) -> int | None:
        """When anything about a tar was changed last, in ns, which nobody can set; None where nothing tells."""
        try:
            return (self.path / name).stat().st_ctime_ns
        except OSError:
            return None

    def open(self, name: str, sha256: str, stamp: tuple[int, int] | None) -> "OpenShard":
        """A tar, for reading members; `sha256` is what shards.json says of it, `stamp` what it was when listed."""
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
        """The bytes from `offset` on; fewer than `size` where the tar ends. OSError or DataError where it fails.

        One that was renamed over is still the one that was opened.
        """
        self.require_unchanged()
        return os.pread(self._descriptor, size, offset)

    def read_into(self, offset: int, buffers: Buffers) -> int:
        """Fill the buffers in order; the number of bytes read, fewer where the tar ends. Does not look for changes."""
        return os.preadv(self._descriptor, buffers, offset)  # type: ignore[arg-type]  # numpy's arrays are buffers

    def require_unchanged(self) -> None:
        """Raise Changed where its bytes are others than when it was listed."""
        if self._stamp is not None and _stamp(os.fstat(self._descriptor)) != self._stamp:
            raise ShardChanged(f"{self._path} changed during training; restart, and write new shards elsewhere")


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
        """See `LocalFolder.size`."""
        return self._sizes.get(name)

    def stamp(self, name: str) -> tuple[int, int] | None:
        """None: shards of ours in a store are named by what is in them, and never overwritten."""
        return None

    def ctime_ns(self, name: str) -> int | None:
        """See `stamp`."""
        return None

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `LocalFolder.read`."""
        data = object_store.read(self.address / name, max_bytes=max_bytes)
        if data is None:
            raise DataError(f"there is no {self.address / name}")
        return data

    def open(self, name: str, sha256: str, stamp: tuple[int, int] | None) -> "OpenShard":
        """See `LocalFolder.open`."""
        size = self._sizes.get(name, 0)
        if self._cache is not None and self._cache.holds(size):
            return LocalShard(self._cache.fetch(self.address / name, sha256, size))
        return object_store.Ranges(self.address / name)


#: One tar, open; a folder of them.
OpenShard = LocalShard | object_store.Ranges
ShardFolder = LocalFolder | StoredFolder


def folder_at(place: Place, cache: ShardCache | None) -> ShardFolder:
    """The folder at a place. UserError if there is none."""
    return StoredFolder(place, cache) if isinstance(place, Address) else LocalFolder(place)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample of a folder of shards."""

    key: str  #: the clip's id
    shard: str  #: the tar's name
    members: Mapping[str, tuple[int, int]]  #: extension -> (offset, size) in the tar
    index: Mapping[str, Json] = field(default_factory=dict)  #: the numbers and texts the writer put into the index
    crcs: tuple[int, ...] = ()  #: CRC-32 of each member, in their order; empty where nobody wrote them down

    def crc(self, extension: str) -> int:
        """What the bytes of a member were when they were written, in 32 bits."""
        return self.crcs[list(self.members).index(extension)]


class ShardRecord(TypedDict):
    """What `shards.json` says of a tar."""

    name: str
    sha256: str
    bytes: int
    num_samples: int
    index_sha256: str


class SampleRecord(TypedDict):
    """What a tar's index says of a sample; `Entry` is the same, judged.

    Args:
        key: the clip's id.
        members: extension -> [offset, size] in the tar.
        crc32: of each member; absent where nobody wrote them down.
        index: the numbers and texts that the writer gave.
    """

    key: str
    members: dict[str, list[int]]
    crc32: NotRequired[list[int]]
    index: dict[str, Json]


def listed_entries(folder: Path, only: Set[str] | None = None) -> list[Entry]:
    """The samples of tars that came without our index; of all in the folder, or of those named.

    Samples of one key in several tars are told apart by the tar: `0.tar/KEY` and `1.tar/KEY`.
    """
    paths = sorted(folder.glob("*.tar")) if only is None else [folder / name for name in sorted(only)]
    if missing := [path for path in paths if not path.is_file()]:
        raise UserError(f"there is no {missing[0]}; {len(missing)} of the {len(paths)} named shards are missing")
    if not paths:
        raise UserError(f"{folder} holds no shards: neither shards.json nor any .tar was found")
    warn_once(f"{folder} has no shards.json; its {len(paths)} tars are indexed by reading their headers")
    entries: list[Entry] = []
    for path in paths:
        index = index_tar(path)
        for reason, count in index.skipped.items():
            warn_once(f"{path}: {count} members left out: {reason}")
        entries += [Entry(key, path.name, members) for key, members in index.samples.items()]
    counts = Counter(entry.key for entry in entries)
    if several := sum(count > 1 for count in counts.values()):
        warn_once(f"{several:,} keys are in more than one tar of {folder}; their samples are named TAR/KEY")
    return [replace(one, key=f"{one.shard}/{one.key}") if counts[one.key] > 1 else one for one in entries]


def indexed_entries(place: Place, folder: ShardFolder, shards: list[ShardRecord]) -> list[Entry]:
    """The samples that `shards.json` and the indices name, each checked against its tar's size."""
    entries: dict[str, Entry] = {}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="indices") as threads:  # each waits for a store's answer
        one_by_one = map if isinstance(place, Path) else threads.map
        read = list(one_by_one(lambda shard: _read_index(place, folder, shard), shards))
    for found in read:
        for entry in found:
            if entries.setdefault(entry.key, entry) is not entry:
                raise DataError(f"sample {entry.key} is in {place} twice; write the shards again")
    return list(entries.values())


def read_shards_json(place: Place, folder: ShardFolder | None = None) -> list[ShardRecord]:
    """The records of a folder's shards. DataError if the file is damaged or of another schema."""
    path = place / "shards.json"
    content = _parse_json(path, _bytes(path, folder or folder_at(place, None), "shards.json"))
    if not isinstance(content, dict) or content.get("schema") != SHARDS_SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} has schema {found!r}, expected {SHARDS_SCHEMA!r}")
    shards = content.get("shards")
    if not isinstance(shards, list) or not all(_is_shard(shard) for shard in shards):
        raise DataError(f"{path} has a damaged list of shards; write the shards again")
    return shards


def _is_shard(shard: Json) -> bool:
    texts, numbers = ("name", "sha256", "index_sha256"), ("bytes", "num_samples")
    return (
        isinstance(shard, dict)
        and all(isinstance(shard.get(name), str) for name in texts)
        and all(type(shard.get(name)) is int for name in numbers)
        and _SHARD_NAME.fullmatch(shard["name"]) is not None
    )


def _read_index(place: Place, folder: ShardFolder, shard: ShardRecord) -> list[Entry]:
    tar, name = place / shard["name"], f"{shard['name'].removesuffix('.tar')}.json"
    path, size = place / name, folder.size(shard["name"])
    if size is None or size != shard["bytes"]:
        there = "is missing" if size is None else f"has {size:,} bytes"
        raise DataError(f"{tar} {there}, but shards.json says {shard['bytes']:,}; write the shards again")
    data = b"" if folder.size(name) is None else _bytes(path, folder, name)
    if sha256(data).hexdigest() != shard["index_sha256"]:
        raise DataError(f"{path} is missing or is not the index that was written with its tar; write the shards again")
    content = _parse_json(path, data)
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or content.get("schema") != INDEX_SCHEMA or len(samples) != shard["num_samples"]:
        raise DataError(f"{path} is not an index of {shard['num_samples']} samples; write the shards again")
    entries = []
    try:
        for sample in samples:
            members = {}
            for extension, (offset, length) in sample["members"].items():
                if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= size:
                    raise ValueError(f"{extension} lies at {offset} with {length} bytes in a tar of {size}")
                if length > MAX_MEMBER_BYTES or extension.rsplit(".", 1)[-1] in REFUSED_EXTENSIONS:
                    raise ValueError(f"{extension} with {length} bytes is too large")
                members[str(extension)] = (offset, length)
            if not isinstance(sample["key"], str) or not isinstance(sample["index"], dict):
                raise TypeError("a key must be text and its index a mapping")
            if not is_key(sample["key"]):  # files are named by it: thumbnails, and what layouts of others hold
                raise ValueError(f"{sample['key'][:100]!r} cannot name a sample")
            crcs = sample.get("crc32", [])
            if len(crcs) not in (0, len(members)) or not all(type(crc) is int and 0 <= crc < 1 << 32 for crc in crcs):
                raise ValueError(f"its {len(members)} members have the checksums {str(crcs)[:100]}")
            entries.append(Entry(sample["key"], shard["name"], members, sample["index"], tuple(crcs)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} has a damaged sample ({error}); write the shards again") from error
    return entries


def _bytes(path: Place, folder: ShardFolder, name: str) -> bytes:
    try:
        return folder.read(name, _MAX_INDEX_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _parse_json(path: Place, data: bytes) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def is_held_out(entry: Entry, fraction: float) -> bool:
    """By clip, not by sample: windows of one clip show the same, so they must not fall on both sides."""
    return fraction > 0 and derive(0, "held out", str(entry.index.get("clip", entry.key))) < fraction * 2**63


def warn_that_none_is_held_out() -> None:
    """Said by data that were asked to hold samples out, and by who wants to measure them; one of both is enough."""
    warn_once("no sample is held out, so there is no validation loss; raise data.val_fraction to get one")
