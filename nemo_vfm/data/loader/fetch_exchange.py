"""Fetches the bytes of a batch: this rank's share from storage, the other shares from its peers.

What a rank learns about its share (a damaged tar, a store that does not answer) travels with the share. So all ranks
do the same, and none waits for a peer that has given up. Every rank computes the whole plan from the index alone,
without communication.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import DataError, LostRank, StoreError
from nemo_vfm.data.batching.batch_source import ReadTraffic
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.shards.read_in_place import ReadsInPlace
from nemo_vfm.data.shards.sample_members import (
    LATENTS,
    NOTHING_ASKED,
    TEXT,
    AskedMembers,
    json_among,
    media_among,
    texts_among,
)
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.parallel.ranks.gather import Gather

#: A shard, an offset in it and a size.
Place = tuple[str, int, int]


@runtime_checkable
class HasSpans(Samples, ReadsInPlace, Protocol):
    """Samples whose bytes can be asked for by offset."""

    def spans(self, entry: Entry, extensions: Sequence[str]) -> list[tuple[int, int]]:
        """(offset, size) of what `read_all` would ask for."""
        ...

    def read_span(self, entry: Entry, offset: int, size: int) -> bytes:
        """So many bytes of the sample's tar from an offset on."""
        ...

    def check_bytes(self, entry: Entry, extension: str, data: bytes) -> bytes:
        """The bytes of a member, once they are whole; DataError where they are not those that were written."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of one sample that lie side by side."""

    entry: Entry  #: whose they are
    offset: int  #: in its tar
    size: int  #: bytes


@dataclass(frozen=True, slots=True)
class SpanPart:
    """The part of a span that one rank fetches."""

    span: int  #: its number in the plan
    begin: int  #: first byte, counted from the span's own beginning
    end: int  #: the byte after the last


@dataclass(frozen=True, slots=True)
class Plan:
    """What one batch needs."""

    index: int  #: number of the batch
    spans: tuple[Span, ...]  #: in the order of its samples; none comes twice

    @property
    def places(self) -> list[Place]:
        """Of the spans, in order."""
        return [(span.entry.shard, span.offset, span.size) for span in self.spans]

    @property
    def num_bytes(self) -> int:
        """Of all spans."""
        return sum(span.size for span in self.spans)

    def share(self, rank: int, num_ranks: int) -> list[SpanPart]:
        """What one rank fetches: the `rank`-th of `num_ranks` equal pieces."""
        total, at, cuts = self.num_bytes, 0, []
        begin, end = total * rank // num_ranks, total * (rank + 1) // num_ranks  # on the spans' common line
        for number, span in enumerate(self.spans):
            first, last = max(begin, at), min(end, at + span.size)
            if first < last:
                cuts.append(SpanPart(number, first - at, last - at))
            at += span.size
        return cuts

    def fingerprint(self) -> str:
        """The same on every rank that means the same bytes: those of another copy may lie in the same places."""
        meant = [(span.entry.key, span.entry.crcs, place) for span, place in zip(self.spans, self.places, strict=True)]
        return hashlib.sha256(repr(meant).encode()).hexdigest()[:16]


def plan(index: int, entries: Sequence[Entry], samples: HasSpans, asked: AskedMembers = NOTHING_ASKED) -> Plan:
    """The plan of a batch; a sample that comes twice in it is fetched once."""
    found: dict[Place, Span] = {}
    for entry in entries:
        members = entry.members  # of which loading reads these; each rank reads any other itself, and counts it
        cached = tuple(sorted(name for name in (LATENTS, TEXT, *asked) if name in members))  # see `CachedLatents`
        reads, media = [cached] if LATENTS in members else [], media_among(members)
        if not reads and media is not None:
            reads += [(media,), *([tuple(asked)] if asked else [])]
        texts = [] if isinstance(entry.index.get("caption"), str) else texts_among(members)
        facts = json_among(members) if "fps" not in entry.index else None
        for extensions in reads + [(name,) for name in dict.fromkeys([*texts, facts]) if name is not None]:
            for offset, size in samples.spans(entry, extensions):
                found.setdefault((entry.shard, offset, size), Span(entry, offset, size))
    return Plan(index, tuple(found.values()))


_AT_ONCE = 8  # spans that one rank asks for at a time: an object store answers them side by side


@dataclass(frozen=True, slots=True)
class FetchedBytes:
    """The bytes of one batch."""

    spans: Mapping[Place, bytes]  #: place -> bytes
    #: place -> why it could not be fetched, by whichever rank
    failed: Mapping[Place, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Exchange:
    """Fetches this rank's share of a batch and gathers the others'."""

    _samples: HasSpans
    _peers: Gather
    traffic: ReadTraffic
    asked: AskedMembers = field(default_factory=dict)  #: members that are read besides
    _stopped: Exception | None = None
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="share")
    )

    def fetch(self, index: int, entries: Sequence[Entry]) -> FetchedBytes:
        """All bytes of a batch. After a failure no rank exchanges anything any more.

        Raises:
            StoreError, Changed: some rank's storage does not answer, or holds something else by now.
            LostRank: a rank is gone, stopped by itself, or asks for another batch.
        """
        if self._stopped is not None:
            raise self._stopped
        try:
            return self._exchange(plan(index, entries, self._samples, self.asked))
        except Exception as error:
            self._stopped = error
            raise

    def _exchange(self, wanted: Plan) -> FetchedBytes:
        rank, num_ranks = self._peers.rank(), self._peers.num_ranks()
        own = _Report()
        share = b"".join(self._threads.map(lambda cut: self._cut(wanted, cut, own), wanted.share(rank, num_ranks)))
        # What a rank sends: 4 bytes of length, its report as JSON, its share.
        report = json.dumps({
            "index": wanted.index, "plan": wanted.fingerprint(), "failed": own.failed,
            "error": None if own.error is None else str(own.error), "kind": type(own.error).__name__,
        }).encode()  # fmt: skip
        parts = []
        for row in self._peers.all_gather(len(report).to_bytes(4, "little") + report + share):
            end = 4 + int.from_bytes(row[:4], "little")
            parts.append((json.loads(bytes(row[4:end])), row[end:]))
        for other, (head, _) in enumerate(parts):
            if head["error"] is not None and other != rank:
                stores = ("StoreUnreachable", "StoreDenied", "StoreError")
                kind = ShardChanged if head["kind"] == "Changed" else StoreError if head["kind"] in stores else LostRank
                raise kind(f"rank {other}, which shares its data with this rank: {head['error']}")
            if (head["index"], head["plan"]) != (wanted.index, wanted.fingerprint()):
                raise LostRank(
                    f"rank {other} reads batch {head['index']}, but this one reads {wanted.index}, or other samples "
                    f"of it; ranks that share their data must have the same shards, seed and batch_size"
                )
        if own.error is not None:
            raise own.error
        self.traffic.fetched += len(share)
        self.traffic.gathered += wanted.num_bytes - len(share)
        self.traffic.batches += 1
        failed = {number: text for head, _ in parts for number, text in head["failed"]}
        places, data = wanted.places, b"".join(data for _, data in parts)
        ends = itertools.accumulate(span.size for span in wanted.spans)
        spans = {place: data[end - place[2] : end] for place, end in zip(places, ends, strict=True)}
        return FetchedBytes(spans, {places[number]: text for number, text in failed.items()})

    def _cut(self, wanted: Plan, cut: SpanPart, report: "_Report") -> bytes:
        span, size = wanted.spans[cut.span], cut.end - cut.begin
        try:
            return self._samples.read_span(span.entry, span.offset + cut.begin, size)
        except (StoreError, ShardChanged) as error:
            report.error = error  # not the sample's fault: the run stops, on all ranks
        except (DataError, OSError) as error:
            report.failed.append((cut.span, str(error)))
        except Exception as error:  # whatever it is, the others must not wait for this rank
            report.error = error
        return bytes(size)


@dataclass(slots=True)
class _Report:
    """What became of one rank's share."""

    failed: list[tuple[int, str]] = field(default_factory=list)  #: (number of a span, why): its sample is bad
    error: Exception | None = None  #: why the whole run has to stop
