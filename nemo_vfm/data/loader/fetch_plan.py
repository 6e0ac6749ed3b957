"""Plans which bytes of the shards a batch needs, and which of them each rank fetches.

The bytes of a batch are concatenated and cut into as many equal pieces as there are ranks. So shares differ by one byte
at most, however few the samples and however different their sizes. A member may be cut in two. Every rank computes the
whole plan from the index alone, without communication.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nemo_vfm.data.shards.read_in_place import ReadsInPlace
from nemo_vfm.data.shards.sample_members import LATENTS, TEXT, json_among, media_among, texts_among
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.shards.shard_files import Entry

#: A shard, an offset in it and a size.
Place = tuple[str, int, int]


@runtime_checkable
class Spanned(Samples, ReadsInPlace, Protocol):
    """Samples whose bytes can be asked for by offset."""

    def spans(self, entry: Entry, extensions: Sequence[str]) -> list[tuple[int, int]]:
        """(offset, size) of what `read_all` would ask for."""
        ...

    def read_span(self, entry: Entry, offset: int, size: int) -> bytes:
        """So many bytes of the sample's tar from an offset on."""
        ...

    def checked(self, entry: Entry, extension: str, data: bytes) -> bytes:
        """The bytes of a member, once they are whole; DataError where they are not those that were written."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of one sample that lie side by side.

    Args:
        entry: whose they are.
        offset: in its tar.
        size: bytes.
    """

    entry: Entry
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a span that one rank fetches.

    Args:
        span: its number in the plan.
        begin: first byte, counted from the span's own beginning.
        end: the byte after the last.
    """

    span: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one batch needs.

    Args:
        index: number of the batch.
        spans: in the order of its samples; none comes twice.
    """

    index: int
    spans: tuple[Span, ...]

    @property
    def places(self) -> list[Place]:
        """Of the spans, in order."""
        return [(span.entry.shard, span.offset, span.size) for span in self.spans]

    @property
    def num_bytes(self) -> int:
        """Of all spans."""
        return sum(span.size for span in self.spans)

    def share(self, rank: int, num_ranks: int) -> list[Cut]:
        """What one rank fetches: the `rank`-th of `num_ranks` equal pieces."""
        total = self.num_bytes
        return list(_between(self.spans, total * rank // num_ranks, total * (rank + 1) // num_ranks))

    def fingerprint(self) -> str:
        """The same on every rank that means the same bytes: those of another copy may lie in the same places."""
        meant = [(span.entry.key, span.entry.crcs, place) for span, place in zip(self.spans, self.places, strict=True)]
        return hashlib.sha256(repr(meant).encode()).hexdigest()[:16]


def plan(index: int, entries: Sequence[Entry], samples: Spanned) -> Plan:
    """The plan of a batch; a sample that comes twice in it is fetched once."""
    found: dict[Place, Span] = {}
    for entry in entries:
        for extensions in _reads(entry):
            for offset, size in samples.spans(entry, extensions):
                found.setdefault((entry.shard, offset, size), Span(entry, offset, size))
    return Plan(index, tuple(found.values()))


def _reads(entry: Entry) -> list[tuple[str, ...]]:
    """The groups of members that loading this entry reads. Each rank reads any other member itself, and counts it."""
    members = entry.members
    reads = [tuple(name for name in (LATENTS, TEXT) if name in members)] if LATENTS in members else []
    media = media_among(members)
    if not reads and media is not None:
        reads.append((media,))
    texts = [] if isinstance(entry.index.get("caption"), str) else texts_among(members)
    facts = json_among(members) if "fps" not in entry.index else None
    return reads + [(name,) for name in dict.fromkeys([*texts, facts]) if name is not None]


def _between(spans: Sequence[Span], begin: int, end: int) -> Iterator[Cut]:
    """The parts of spans between two places of their common line."""
    at = 0
    for number, span in enumerate(spans):
        first, last = max(begin, at), min(end, at + span.size)
        if first < last:
            yield Cut(number, first - at, last - at)
        at += span.size
