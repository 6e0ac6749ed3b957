"""Lists the samples of training data, splits them into training, held-out and unusable, and reads them."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.batching.batch_source import ReadTraffic
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.batching.sample_order import BatchGroup, ShapeGroup
from nemo_vfm.data.loader.collate import collate
from nemo_vfm.data.loader.fetch_exchange import HasSpans
from nemo_vfm.data.loader.shared_fetch import HeldSamples
from nemo_vfm.data.shards.mock_samples import MockSamples
from nemo_vfm.data.shards.sample_members import LATENTS, TEXT, AskedMembers
from nemo_vfm.data.shards.sample_reader import Census, Layout, Loading, Samples, asked_layout, choose_loading
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.shards.shard_folder import is_held_out, warn_that_none_is_held_out

_MAX_WEIGHT = 1000  # more is a damaged index


class EntryReader:
    """Reads samples by their places in a list of entries; `asked` says what their groups' members look like."""

    def __init__(self, loading: Loading | MockSamples, entries: Sequence[Entry], asked: Mapping[int, Layout]) -> None:
        self._loading, self._entries, self._sizes, self._asked = loading, entries, dict[int, int](), asked
        self.is_light = loading.is_light

    def read(self, index: int, samples: ShapeGroup) -> tuple[VideoBatch, list[Fault | None]]:
        """See `SampleReader.read`."""
        return collate(index, self.entries(samples.ids), self._loading.load, self.layout(samples.like))

    def entries(self, ids: Sequence[int]) -> list[Entry]:
        """The samples, by their places in the list."""
        return [self._entries[sample] for sample in ids]

    def layout(self, like: int) -> Layout:
        """What every sample of the group of this one looks like."""
        return {**self._loading.layout(self._entries[like]), **self._asked.get(like, {})}

    def num_bytes(self, samples: ShapeGroup) -> int:
        """See `SampleReader.num_bytes`."""
        if samples.like not in self._sizes:
            layout = self.layout(samples.like).values()
            self._sizes[samples.like] = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout)
        return len(samples.ids) * self._sizes[samples.like]


class OpenedSamples:
    """The samples, split into training, held-out and unusable; see `ListedData` for the arguments."""

    def __init__(
        self, samples: Samples, *, buckets: Buckets | None, decoder: Decoder, batch_size: int, val_fraction: float,
        traffic: ReadTraffic, asked: AskedMembers,
    ) -> None:  # fmt: skip
        self.samples = HeldSamples(samples, traffic) if isinstance(samples, HasSpans) else samples
        how = samples if isinstance(samples, MockSamples) else choose_loading(self.samples, buckets, decoder, asked)
        _require_members(samples, asked)
        places, left_out = _group_by_shape(samples.entries, how, asked)
        if left_out:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
            of = f"{left_out.total()} of {len(samples.entries)} samples in {samples.folder}"
            warn(f"{of} cannot be trained on: {counts}")
        census = Census(asked)
        for entry in samples.entries:
            census.add(samples, entry)
        census.tell(str(samples.folder))
        held_out = {i for group in places.values() for i in group if is_held_out(samples.entries[i], val_fraction)}
        self.train, self.val = (
            [
                BatchGroup(name, tuple(chosen), how.batch_size_of(name) or batch_size)
                for name, group in sorted(places.items())
                if (chosen := [
                    place
                    for i in group
                    if (i in held_out) == is_val
                    for place in [i] * (1 if is_val else _times(samples.entries[i]))
                ])
            ]
            for is_val in (False, True)
        )  # fmt: skip
        if not self.train:
            raise UserError(
                f"no sample in {samples.folder} is left to train on; see the reasons above, or lower val_fraction"
            )
        self.reader = EntryReader(how, samples.entries, {
            group.samples[0]: asked_layout(self.samples, [samples.entries[i] for i in places[group.name][:100]], asked)
            for group in (self.train + self.val if asked else ())
        })  # fmt: skip
        # Of each group's keys, in their order.
        self.digests = {
            group.name: sha256_text("".join(f"{samples.entries[sample].key}\n" for sample in group.samples))
            for group in self.train
        }
        trained = sum(len(group.samples) for group in self.train)
        info(f"{trained:,} samples to train on, {len(held_out):,} held out, shapes: {len(places)}")
        if val_fraction and not held_out:
            warn_that_none_is_held_out()


def _times(entry: Entry) -> int:
    """How often a sample comes in an epoch: the weight of its clip (docs/how-to/video/decisions.md), else once."""
    weight = entry.index.get("weight", 1)
    return weight if type(weight) is int and 1 <= weight <= _MAX_WEIGHT else 1


def _require_members(samples: Samples, asked: AskedMembers) -> None:
    """UserError if no sample has one of the members that are asked for, as where its name is misspelt."""
    there = {file for entry in samples.entries for file in entry.members} - {LATENTS, TEXT} if asked else set()
    for file, name in asked.items():
        if file in there:
            continue
        suffix = file.removeprefix(name)
        known = sorted(one.removesuffix(suffix) for one in there if one.endswith(suffix))
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        instead = f"; did you mean {near[0]}?" if near else ""
        raise UserError(
            f"`members` asks for {name}, but no sample in {samples.folder} has a member {file}; of such there are "
            f"{', '.join(known[:8]) or 'none'}{instead}"
        )


def _group_by_shape(
    entries: Sequence[Entry], how: Loading | MockSamples, asked: AskedMembers
) -> tuple[dict[str, list[int]], Counter[str]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for number, entry in enumerate(entries):
        missing = next((file for file in asked if file not in entry.members), None)
        name, reason = how.group_of(entry) if missing is None else (None, f"no {missing}")
        if name is None:
            left_out[reason] += 1
        else:
            places[name].append(number)
    return dict(places), left_out
