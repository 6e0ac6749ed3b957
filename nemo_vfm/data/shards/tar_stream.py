# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the samples of tars without an index, in order, from front to back, by webdataset.

webdataset gets an open stream and never an address: with an address it would start shells (`pipe:`) and programs.
"""

import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.optional import require
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.data.shards.tar_sanitizer import Sieve, Unreadable

_CHUNK = 8 << 20


class OpenTar(Protocol):
    """A tar, open from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Tar(Protocol):
    """A tar that can be opened."""

    @property
    def name(self) -> str:
        """How messages, and the file of counts, call it."""
        ...

    def size(self) -> int | None:
        """Bytes, where that is known before it is read."""
        ...

    def open(self) -> OpenTar:
        """From the front."""
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """One sample, not decoded.

    Args:
        key: as in the tar.
        tar: the tar's name.
        members: extension -> bytes.
    """

    key: str
    tar: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class PlacedTar:
    """A tar here or in an object store.

    Args:
        where: its place.
    """

    where: Place

    @property
    def name(self) -> str:
        """See `Tar.name`."""
        return str(self.where)

    def size(self) -> int:
        """See `Tar.size`."""
        return object_store.Ranges(self.where).size if isinstance(self.where, Address) else self.where.stat().st_size

    def open(self) -> OpenTar:
        """See `Tar.open`."""
        return _Chunks(self.where) if isinstance(self.where, Address) else self.where.open("rb")


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
    """The samples of one tar, in its order. One that is no tar gives none, and is told.

    Raises:
        UserError: there is no such tar.
        DataError: it cannot be read to its end.
        StoreError: the store does not answer.
    """
    tariterators = require("webdataset.tariterators", purpose="Streaming tars")
    try:
        with closing(tar.open()) as stream:
            sieve = Sieve(stream, tar.name, max_member_bytes=max_member_bytes)
            files = tariterators.tar_file_expander([{"url": tar.name, "stream": sieve}])
            for sample in tariterators.group_by_keys(files):
                members = {name: data for name, data in sample.items() if isinstance(data, bytes)}
                yield Raw(sample["__key__"], tar.name, members)
            for reason, count in sieve.skipped.items():
                warn_once(f"{tar.name}: {count} members left out: {reason}")
    except FileNotFoundError as error:
        raise UserError(f"there is no {tar.name}") from error
    except OSError as error:  # the line, not the bytes: going on would train on other samples than a resume
        raise DataError(f"{tar.name} cannot be read: {error}") from error
    except (Unreadable, tarfile.TarError) as error:
        warn_once(f"{tar.name} is read no further: {error}")
