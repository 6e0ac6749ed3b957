"""Reads the tensors of safetensors members straight to where a batch has them, a sample in one system call.

Threads that read take turns at the interpreter, and a turn takes longer than a small read. So a batch is planned,
then read in a loop that does little else, then checked. Samples of 73 KB a second, from memory, by one thread and by
two (2 cores, 2026-11): 17,500 and 18,500; when every member was read, checked and copied by itself, 12,000 and 8,500.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.shards.safetensors_views import TensorView, header_and_tensors
from nemo_vfm.data.shards.shard_folder import Buffers, Entry, LocalShard, MemberSpan

#: Memory to read to, (samples, bytes) uint8, of every tensor by name.
Rows = Mapping[str, NDArray[np.uint8]]
_MAX_KINDS = 256


@runtime_checkable
class ReadsInPlace(Protocol):
    """Samples that may lie in tars on a disk."""

    def locate(self, entry: Entry, extensions: Sequence[str]) -> tuple[LocalShard, MemberSpan] | None:
        """A sample's tar, and where its members lie there; None where they are not on a disk, or far apart."""
        ...

    def check(self, entry: Entry, extensions: Sequence[str], members: Sequence[Buffers], missing: int) -> None:
        """DataError where bytes are missing, or are not those that were written."""
        ...


@dataclass(frozen=True, slots=True)
class _MemberLayout:
    """What a member is in all samples of one shape: a header, and the tensors that follow it."""

    header: bytes
    tensors: Mapping[str, TensorView]


@dataclass(slots=True)
class _PendingRead:
    """A sample to be read: the kinds of its members, memory for each, and where they lie."""

    kinds: list[_MemberLayout]
    members: list[list[bytearray | NDArray[np.uint8]]]
    file: LocalShard
    spread: MemberSpan
    buffers: Buffers
    error: OSError | None = None
    num_read: int = 0

    def tensors(self) -> dict[str, TensorView] | None:
        """What was read; None where a header is another one."""
        found: dict[str, TensorView] = {}
        for kind, (head, *rows) in zip(self.kinds, self.members, strict=True):
            if head != kind.header:
                return None
            for (name, stored), row in zip(kind.tensors.items(), rows, strict=True):
                found[name] = TensorView(stored.dtype, stored.shape, row)  # type: ignore[arg-type]  # only heads are no arrays
        return found


@dataclass(eq=False, slots=True)
class ReaderInPlace:
    """Reads samples of shapes that it has learned."""

    _samples: ReadsInPlace
    _extensions: Sequence[str]
    _known: dict[tuple[object, ...], list[_MemberLayout]] = field(default_factory=dict)

    def learn(self, entry: Entry, contents: Sequence[bytes], rows: Rows) -> None:
        """Remember what the members of a sample are, if their tensors fill its rows and nothing lies between them."""
        key = self._key(entry, _shape(entry, rows))
        if key in self._known or len(self._known) >= _MAX_KINDS:
            return  # what was gathered, or lies in a store, comes this way sample after sample
        found = [header_and_tensors(data) for data in contents]
        members = [_MemberLayout(*one) for one in found if one is not None]
        each = [(name, stored.data.size) for member in members for name, stored in member.tensors.items()]
        if len(members) == len(found) and sorted(each) == sorted((name, row.shape[1]) for name, row in rows.items()):
            self._known[key] = members

    def read(self, entries: Sequence[Entry], rows: Rows) -> list[dict[str, TensorView] | DataError | OSError | None]:
        """The tensors of each sample, now in its rows; None where it is not like one that was learned."""
        shape = _shape(entries[0], rows)
        reads: list[_PendingRead | None] = []
        for place, entry in enumerate(entries):
            kinds = self._known.get(self._key(entry, shape))
            where = None if kinds is None else self._samples.locate(entry, self._extensions)
            if kinds is None or where is None:
                reads.append(None)
                continue
            members = [[bytearray(len(kind.header)), *[rows[name][place] for name in kind.tensors]] for kind in kinds]
            buffers: list[bytearray | NDArray[np.uint8]] = []
            for gap, member in zip(where[1].gaps, members, strict=True):
                buffers += [bytearray(gap), *member] if gap else member
            reads.append(_PendingRead(kinds, members, *where, buffers))
        planned = [read for read in reads if read is not None]
        for one in planned:
            try:
                one.num_read = one.file.read_into(one.spread.offset, one.buffers)
            except OSError as error:
                one.error = error
        for file in {one.file for one in planned}:
            file.require_unchanged()
        found: list[dict[str, TensorView] | DataError | OSError | None] = []
        for entry, read in zip(entries, reads, strict=True):
            if read is None or read.error is not None:
                found.append(None if read is None else read.error)
                continue
            try:
                self._samples.check(entry, self._extensions, read.members, read.spread.size - read.num_read)
            except (DataError, OSError) as error:
                found.append(error)
            else:
                found.append(read.tensors())
        return found

    def _key(self, entry: Entry, shape: tuple[object, ...]) -> tuple[object, ...]:
        return *shape, *[entry.members[extension][1] for extension in self._extensions]


def _shape(entry: Entry, rows: Rows) -> tuple[object, ...]:
    """What the index says, if anything, and what a batch expects: files of one length may be of two shapes."""
    return str(entry.index.get("latent_shape")), *[row.shape[1] for row in rows.values()]
