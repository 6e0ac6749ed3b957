"""Fetches the bytes of a batch: this rank's share from storage, the other shares from its peers.

What a rank learns about its share (a damaged tar, a store that does not answer) travels with the share. So all ranks
do the same, and none waits for a peer that has given up.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nemo_vfm.core.errors import DataError, LostRank, NemoVfmError, StoreError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.batching.faults import Changed
from nemo_vfm.data.loader.fetch_plan import Cut, Place, Plan, Spanned, plan
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.parallel.ranks.gather import Gather

_AT_ONCE = 8  # spans that one rank asks for at a time: an object store answers them side by side


@dataclass(slots=True)
class Traffic:
    """What this rank moved.

    Args:
        fetched: bytes asked of the storage as its share.
        gathered: bytes received from the other ranks.
        alone: bytes asked of the storage beside the plan; 0 where the plan knows all that is read.
        batches: exchanged.
    """

    fetched: int = 0
    gathered: int = 0
    alone: int = 0
    batches: int = 0

    def __str__(self) -> str:
        return (
            f"{self.batches} batches: {self.fetched:,} bytes fetched from storage, {self.gathered:,} gathered from "
            f"other ranks, {self.alone:,} read alone"
        )


@dataclass(frozen=True, slots=True)
class FetchedBytes:
    """The bytes of one batch.

    Args:
        spans: place -> bytes.
        failed: place -> why it could not be fetched, by whichever rank.
    """

    spans: Mapping[Place, bytes]
    failed: Mapping[Place, str] = field(default_factory=dict)


class Exchange:
    """Fetches this rank's share of a batch and gathers the others'.

    Args:
        samples: where the bytes lie.
        peers: the ranks that need the same samples.
        traffic: counts.
    """

    def __init__(self, samples: Spanned, peers: Gather, traffic: Traffic) -> None:
        self._samples, self._peers, self.traffic = samples, peers, traffic
        self._stopped: Exception | None = None
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="share")

    def held(self, index: int, entries: Sequence[Entry]) -> FetchedBytes:
        """All bytes of a batch. After a failure no rank exchanges anything any more.

        Raises:
            StoreError, Changed: some rank's storage does not answer, or holds something else by now.
            LostRank: a rank is gone, stopped by itself, or asks for another batch.
        """
        if self._stopped is not None:
            raise self._stopped
        try:
            return self._held(plan(index, entries, self._samples))
        except Exception as error:
            self._stopped = error
            raise

    def _held(self, wanted: Plan) -> FetchedBytes:
        rank, num_ranks = self._peers.rank(), self._peers.num_ranks()
        own, share = self._fetched(wanted, wanted.share(rank, num_ranks))
        parts = [_parted(row) for row in self._peers.all_gather(own.packed(wanted, share))]
        self._check(wanted, [head for head, _ in parts])
        if own.error is not None:
            raise own.error
        self.traffic.fetched += len(share)
        self.traffic.gathered += wanted.num_bytes - len(share)
        self.traffic.batches += 1
        failed = {number: text for head, _ in parts for number, text in head["failed"]}
        return _unpacked(wanted, b"".join(data for _, data in parts), failed)

    def _fetched(self, wanted: Plan, cuts: Sequence[Cut]) -> "tuple[_Report, bytes]":
        """This rank's bytes, zeros where there is nothing, and what to tell the others."""
        report = _Report()
        return report, b"".join(self._threads.map(lambda cut: self._cut(wanted, cut, report), cuts))

    def _cut(self, wanted: Plan, cut: Cut, report: "_Report") -> bytes:
        span, size = wanted.spans[cut.span], cut.end - cut.begin
        try:
            return self._samples.read_span(span.entry, span.offset + cut.begin, size)
        except (StoreError, Changed) as error:
            report.error = error  # not the sample's fault: the run stops, on all ranks
        except (DataError, OSError) as error:
            report.failed.append((cut.span, str(error)))
        except Exception as error:  # whatever it is, the others must not wait for this rank
            report.error = error
        return bytes(size)

    def _check(self, wanted: Plan, heads: Sequence[dict[str, Json]]) -> None:
        for rank, head in enumerate(heads):
            if head["error"] is not None and rank != self._peers.rank():
                raise _of_kind(str(head["kind"]), f"rank {rank}, which shares its data with this rank: {head['error']}")
            if (head["index"], head["plan"]) != (wanted.index, wanted.fingerprint()):
                raise LostRank(
                    f"rank {rank} reads batch {head['index']}, but this one reads {wanted.index}, or other samples "
                    f"of it; ranks that share their data must have the same shards, seed and batch_size"
                )


@dataclass(slots=True)
class _Report:
    """What became of one rank's share.

    Args:
        failed: (number of a span, why): its sample is bad.
        error: why the whole run has to stop.
    """

    failed: list[tuple[int, str]] = field(default_factory=list)
    error: Exception | None = None

    def packed(self, wanted: Plan, share: bytes) -> bytes:
        """The report before the bytes: 4 bytes of length, JSON, the share."""
        head = {
            "index": wanted.index, "plan": wanted.fingerprint(), "failed": self.failed,
            "error": None if self.error is None else str(self.error), "kind": type(self.error).__name__,
        }  # fmt: skip
        text = json.dumps(head).encode()
        return len(text).to_bytes(4, "little") + text + share


def _parted(row: memoryview) -> tuple[dict[str, Json], memoryview]:
    """The inverse of `_Report.packed`."""
    end = 4 + int.from_bytes(row[:4], "little")
    return json.loads(bytes(row[4:end])), row[end:]


def _unpacked(wanted: Plan, data: bytes, failed: Mapping[int, str]) -> FetchedBytes:
    places, ends = wanted.places, itertools.accumulate(span.size for span in wanted.spans)
    spans = {place: data[end - place[2] : end] for place, end in zip(places, ends, strict=True)}
    return FetchedBytes(spans, {places[number]: text for number, text in failed.items()})


def _of_kind(kind: str, text: str) -> NemoVfmError:
    kinds: dict[str, type[NemoVfmError]] = {"Changed": Changed, "StoreUnreachable": StoreError,
                                            "StoreDenied": StoreError, "StoreError": StoreError}  # fmt: skip
    return kinds.get(kind, LostRank)(text)
