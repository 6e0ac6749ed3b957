"""Summarises samples of shards, and describes one of them: its texts, numbers, tensors and video."""

import io
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from nemo_vfm.config.recipe_errors import did_you_mean, printable
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.safetensors_views import stored_tensors
from nemo_vfm.data.shards.sample_members import VIDEOS
from nemo_vfm.data.shards.sample_reader import Samples, caption_of, facts_of
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.decode import open_video

_MAX_LOOKED_INTO = 1000  # samples whose own members are read, where the index does not say
_NUM_BINS = 8


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a histogram: numbers from `low` up to `high`, the last bar's `high` included."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """A summary of many numbers."""

    count: int
    total: float
    smallest: float
    median: float
    largest: float


@dataclass(slots=True)
class Summary:
    """What a set of shards holds."""

    samples: int
    shards: int  #: tars
    clips: int  #: that the samples were cut from; their own number where they are no windows
    members: dict[str, Numbers]  #: extension -> bytes of each
    looked_into: int  #: samples that the rest is of: all, or the first ones where that means reading them
    buckets: dict[str, int] = field(default_factory=dict)  #: name -> samples
    sizes: dict[str, int] = field(default_factory=dict)  #: such as 640x360 -> samples
    latent_shapes: dict[str, int] = field(default_factory=dict)  #: such as 16x4x32x32 -> samples
    fps: dict[str, int] = field(default_factory=dict)  #: rate -> samples
    duration_s: list[Bin] = field(default_factory=list)
    caption_words: list[Bin] = field(default_factory=list)
    without_caption: int = 0  #: samples
    unknown: int = 0  #: samples whose size or rate is unknown


def summarise(samples: Samples) -> Summary:
    """Look at every entry, and into samples where their index says too little."""
    entries = samples.entries
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for entry in entries:
        for name, (_, size) in entry.members.items():
            sizes[name].append(size)
    known = all("fps" in entry.index and "caption" in entry.index for entry in entries)
    looked = entries if known else entries[:_MAX_LOOKED_INTO]
    facts: list[Mapping[str, Json]] = []  # where the index says nothing, of the sample itself
    durations, captions = list[float](), list[int]()
    for entry in looked:
        fact: Mapping[str, Json] = entry.index
        with suppress(DataError, KeyError, TypeError, ValueError):  # what is damaged is simply not known
            fact = {**entry.index, **facts_of(samples, entry)}
        facts.append(fact)
        with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
            lasts = fact.get("duration_s")
            durations.append(float(fact["num_frames"]) / float(fact["fps"]) if lasts is None else float(lasts))
        captions.append(0)
        with suppress(DataError):
            captions[-1] = len(caption_of(samples, entry).split())
    return Summary(
        samples=len(entries),
        shards=len({entry.shard for entry in entries}),
        clips=len({str(entry.index.get("clip", entry.key)) for entry in entries}),
        members={
            name: Numbers(len(found), sum(found), min(found), statistics.median(found), max(found))
            for name, found in sorted(sizes.items())
        },
        looked_into=len(looked),
        buckets=_count_names(fact["bucket"] for fact in facts if "bucket" in fact),
        sizes=_count_names(f"{fact['width']}x{fact['height']}" for fact in facts if {"width", "height"} <= fact.keys()),
        latent_shapes=_count_names("x".join(map(str, f["latent_shape"])) for f in facts if "latent_shape" in f),
        fps=_count_names(f"{float(fact['fps']):.4g}" for fact in facts if "fps" in fact),
        duration_s=histogram(durations),
        caption_words=whole_histogram([count for count in captions if count]),
        without_caption=captions.count(0),
        unknown=sum("fps" not in fact for fact in facts),
    )


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


def _count_names(names: Iterator[str]) -> dict[str, int]:
    """The most frequent first."""
    return dict(Counter(map(str, names)).most_common())


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a member; of numbers that are not finite only how many there are."""

    member: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    smallest: float
    largest: float
    mean: float
    deviation: float
    not_finite: int


@dataclass(slots=True)
class One:
    """A sample."""

    key: str
    shard: str  #: the tar's name
    members: dict[str, tuple[int, int]]  #: extension -> (offset in the tar, bytes)
    caption: str  #: empty where it has none
    facts: Json  #: the json member, or the index where there is none
    tensors: list[Tensor] = field(default_factory=list)  #: of all safetensors and npy members
    films: dict[str, str] = field(default_factory=dict)  #: extension -> what it is, in words
    damaged: dict[str, str] = field(default_factory=dict)  #: extension -> why it cannot be read


def entry_of(entries: Sequence[Entry], key: str) -> Entry:
    """The sample of that key, or the only one whose key begins like that."""
    found = [entry for entry in entries if entry.key == key] or [e for e in entries if e.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    shown = printable(key, 80)
    if found:
        raise UserError(f"{len(found)} samples begin with {shown}, such as {found[0].key} and {found[1].key}")
    raise UserError(
        f"there is no sample {shown} among {len(entries)}{did_you_mean(key, [entry.key for entry in entries])}"
    )


def describe(samples: Samples, entry: Entry) -> One:
    """Read all members of a sample; a damaged one is said and does not hide the others."""
    one = One(entry.key, entry.shard, dict(entry.members), "", dict(entry.index))
    for extension in entry.members:
        kind = extension.rpartition(".")[2]
        try:
            if kind == "json":
                one.facts = json.loads(samples.read(entry, extension))
            elif kind == "safetensors":
                stored = {name: torch.frombuffer(bytearray(value.data), dtype=value.dtype).reshape(value.shape)
                          for name, value in stored_tensors(samples.read(entry, extension)).items()}  # fmt: skip
                one.tensors += [_tensor(extension, name, tensor) for name, tensor in stored.items()]
            elif kind == "npy":
                array = np.load(io.BytesIO(samples.read(entry, extension)), allow_pickle=False)
                one.tensors.append(_tensor(extension, "", torch.from_numpy(np.atleast_1d(array))))
            elif kind in VIDEOS:
                with open_video(samples.read(entry, extension)) as reader:
                    info = reader.info()
                size, rate = f"{info.width}x{info.height}", f"{info.num_frames} frames at {info.fps:.4g} fps"
                one.films[extension] = f"{info.codec}, {size}, {rate}, {info.duration_s:.2f} s"
        except (DataError, ValueError, EOFError) as error:
            one.damaged[extension] = str(error)
    try:
        one.caption = caption_of(samples, entry)
    except DataError as error:
        one.damaged["txt"] = str(error)
    return one


def _tensor(member: str, name: str, tensor: torch.Tensor) -> Tensor:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    values = tensor.double().flatten()
    finite = values[torch.isfinite(values)]
    if not len(finite):
        return Tensor(member, name, dtype, shape, 0.0, 0.0, 0.0, 0.0, len(values))
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    return Tensor(
        member, name, dtype, shape, low, high, mean, float(finite.std(correction=0)), len(values) - len(finite)
    )
