"""Summarises samples of shards: counts, sizes, lengths and histograms."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.sample_reader import Samples, caption_of, facts_of
from nemo_vfm.data.shards.shard_files import Entry

_MOST_LOOKED_INTO = 1000  # samples whose own members are read, where the index does not say
_NUM_BINS = 8


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a histogram: numbers from `low` up to `high`, the last bar's `high` included."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """A lot of numbers, in short."""

    count: int
    total: float
    smallest: float
    median: float
    largest: float


@dataclass(slots=True)
class Summary:
    """What a set of shards holds.

    Args:
        samples: how many.
        shards: tars.
        clips: that the samples were cut from; their own number where they are no windows.
        members: extension -> bytes of each.
        looked_into: samples that the rest is of: all, or the first ones where that means reading them.
        buckets: name -> samples.
        sizes: such as 640x360 -> samples.
        latent_shapes: such as 16x4x32x32 -> samples.
        fps: rate -> samples.
        duration_s: histogram.
        caption_words: histogram.
        without_caption: samples.
        unknown: samples whose size or rate nobody says.
    """

    samples: int
    shards: int
    clips: int
    members: dict[str, Numbers]
    looked_into: int
    buckets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    latent_shapes: dict[str, int] = field(default_factory=dict)
    fps: dict[str, int] = field(default_factory=dict)
    duration_s: list[Bin] = field(default_factory=list)
    caption_words: list[Bin] = field(default_factory=list)
    without_caption: int = 0
    unknown: int = 0

    def to_json(self) -> Json:
        """For machines."""
        return asdict(self)


def summarise(samples: Samples) -> Summary:
    """Look at every entry, and into samples where their index says too little."""
    entries = samples.entries
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for entry in entries:
        for name, (_, size) in entry.members.items():
            sizes[name].append(size)
    known = all("fps" in entry.index and "caption" in entry.index for entry in entries)
    looked = entries if known else entries[:_MOST_LOOKED_INTO]
    facts = [_facts(samples, entry) for entry in looked]
    captions = [_num_words(samples, entry) for entry in looked]
    return Summary(
        samples=len(entries),
        shards=len({entry.shard for entry in entries}),
        clips=len({str(entry.index.get("clip", entry.key)) for entry in entries}),
        members={name: numbers(found) for name, found in sorted(sizes.items())},
        looked_into=len(looked),
        buckets=_counted(fact["bucket"] for fact in facts if "bucket" in fact),
        sizes=_counted(f"{fact['width']}x{fact['height']}" for fact in facts if {"width", "height"} <= fact.keys()),
        latent_shapes=_counted("x".join(map(str, f["latent_shape"])) for f in facts if "latent_shape" in f),
        fps=_counted(f"{float(fact['fps']):.4g}" for fact in facts if "fps" in fact),
        duration_s=histogram(list(_durations(facts))),
        caption_words=whole_histogram([count for count in captions if count]),
        without_caption=captions.count(0),
        unknown=sum("fps" not in fact for fact in facts),
    )


def numbers(found: Sequence[float]) -> Numbers:
    """Count, total, smallest, median, largest; at least one number."""
    return Numbers(len(found), sum(found), min(found), statistics.median(found), max(found))


def histogram(found: Sequence[float]) -> list[Bin]:
    """Eight bars of equal width; one where all numbers are equal, none where there is none."""
    if not found:
        return []
    low, high = min(found), max(found)
    if low == high:
        return [Bin(low, high, len(found))]
    width = (high - low) / _NUM_BINS
    counts = Counter(min(_NUM_BINS - 1, int((number - low) / width)) for number in found)
    return [Bin(low + bar * width, low + (bar + 1) * width, counts[bar]) for bar in range(_NUM_BINS)]


def whole_histogram(found: Sequence[int]) -> list[Bin]:
    """At most eight bars of whole numbers, `high` included in each."""
    if not found:
        return []
    low, width = min(found), -(-(max(found) - min(found) + 1) // _NUM_BINS)
    counts = Counter((number - low) // width for number in found)
    return [Bin(low + bar * width, low + (bar + 1) * width - 1, counts[bar]) for bar in range(max(counts) + 1)]


def _facts(samples: Samples, entry: Entry) -> Mapping[str, Json]:
    """The index, and where it says nothing of the rate, the sample itself; what is damaged is simply not known."""
    try:
        return {**entry.index, **facts_of(samples, entry)}
    except (DataError, KeyError, TypeError, ValueError):
        return entry.index


def _durations(facts: Sequence[Mapping[str, Json]]) -> Iterator[float]:
    for fact in facts:
        try:
            known = fact.get("duration_s")
            yield float(fact["num_frames"]) / float(fact["fps"]) if known is None else float(known)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue


def _num_words(samples: Samples, entry: Entry) -> int:
    try:
        return len(caption_of(samples, entry).split())
    except DataError:
        return 0


def _counted(names: Iterator[str]) -> dict[str, int]:
    """The most frequent first."""
    return dict(Counter(map(str, names)).most_common())
