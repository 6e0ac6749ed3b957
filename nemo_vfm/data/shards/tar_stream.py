"""Reads the samples of tars without an index, in order, from front to back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.data.shards.shard_folder import Entry
from nemo_vfm.data.shards.tar_members import OpenTar, TarMembers, Unreadable, neighbours

_CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Tar:
    """A tar that can be opened."""

    name: str  #: how messages, and the file of counts, call it
    open: Callable[[], OpenTar]  #: from the front
    size: Callable[[], int | None]  #: bytes, where that is known before it is read


@dataclass(frozen=True, slots=True)
class Raw:
    """One sample, not decoded; by itself it is the set of samples that decoding asks for."""

    key: str  #: as in the tar
    tar: str  #: the tar's name
    members: Mapping[str, bytes]  #: extension -> bytes

    @property
    def folder(self) -> str:
        """See `Samples.folder`."""
        return self.tar

    @property
    def entry(self) -> Entry:
        """What is known of it."""
        return Entry(self.key, self.tar, {name: (0, len(data)) for name, data in self.members.items()})

    @property
    def entries(self) -> tuple[Entry, ...]:
        """See `Samples.entries`."""
        return (self.entry,)

    def read(self, entry: Entry, extension: str) -> bytes:
        """See `Samples.read`."""
        if extension not in self.members:
            raise DataError(f"sample {entry.key} has no {extension}, only {', '.join(self.members)}")
        return self.members[extension]

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """See `Samples.read_all`."""
        return [self.read(entry, extension) for extension in extensions]


def placed_tar(where: Place) -> Tar:
    """A tar here or in an object store."""
    if isinstance(where, Address):
        return Tar(str(where), lambda: _Chunks(where), lambda: object_store.Ranges(where).size)
    return Tar(str(where), lambda: where.open("rb"), lambda: where.stat().st_size)


class _Chunks:
    """An object read front to back by ranges, the next one asked for while this one is used: 16 MiB at most."""

    def __init__(self, address: Address) -> None:
        self._ranges, self._position, self._held = object_store.Ranges(address), 0, memoryview(b"")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tar")
        self._next: Future[bytes] = self._thread.submit(self._chunk)

    def close(self) -> None:
        """See `OpenTar.close`."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def read(self, size: int, /) -> bytes:
        """See `OpenTar.read`."""
        if not self._held:
            self._held = memoryview(self._next.result())
            if self._held:
                self._next = self._thread.submit(self._chunk)
        given, self._held = self._held[:size], self._held[size:]
        return bytes(given)

    def _chunk(self) -> bytes:
        data = self._ranges.read(self._position, min(_CHUNK, self._ranges.size - self._position))
        self._position += len(data)
        return data


def samples_of(tar: Tar, *, max_member_bytes: int) -> Iterator[Raw]:
    """The samples of one tar, in its order. One that is no tar gives none, and is told."""
    keys: set[str] = set()
    try:
        with closing(tar.open()) as stream:
            members = TarMembers(stream, tar.name, max_member_bytes=max_member_bytes)
            contents = ((m.key, m.extension, data) for m in members if (data := members.read(m)) is not None)
            for key, found in neighbours(contents, members.skipped):
                if key in keys:
                    members.skipped["a duplicate key"] += len(found)
                    continue
                keys.add(key)
                yield Raw(key, tar.name, found)
            for reason, count in members.skipped.items():
                warn_once(f"{tar.name}: {count} members left out: {reason}")
    except FileNotFoundError as error:
        raise UserError(f"there is no {tar.name}") from error
    except OSError as error:  # the line, not the bytes: going on would train on other samples than a resume
        raise DataError(f"{tar.name} cannot be read: {error}") from error
    except Unreadable as error:
        warn_once(f"{error}; the rest of it is not read")
