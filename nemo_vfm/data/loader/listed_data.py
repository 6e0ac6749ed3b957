"""Makes training data of samples that can be listed.

Shards, folders of videos and tables share this code: only where the samples lie differs between them.
"""

import copy
import keyword
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.batch_source import ReadTraffic
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.sample_order import BatchGroup, Order, ShapeGroup
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.shards.sample_members import OWN_TENSORS, AskedMembers

if TYPE_CHECKING:
    from nemo_vfm.data.loader.opened_samples import EntryReader, OpenedSamples
    from nemo_vfm.data.shards.sample_reader import Samples
    from nemo_vfm.parallel.ranks.gather import Gather

_MEMBER = re.compile(r"[a-z][a-z0-9_]*")


class ListedData(ScheduledData[ShapeGroup]):
    """Batches from samples that are listed when the data is opened.

    The samples of global batch g are a function of the samples, the seed and g: not of workers, ranks or resumes.
    """

    decodes = True  #: whether samples are always videos and pictures; else they may be cached latents
    fetches_together = False  #: whether ranks that get the same slice fetch it together, where there are several

    def __init__(
        self,
        *,
        batch_size: int,
        num_workers: int,
        val_fraction: float,
        buckets: Buckets | None,
        shuffle: bool,
        max_bad_in_a_row: int,
        max_ahead_gb: float,
        max_memory_share: float | None,
        decoder: Decoder,
        members: Sequence[str] = (),
    ) -> None:
        if batch_size < 1 or num_workers < 0 or max_bad_in_a_row < 1:
            raise ValueError(
                f"batch_size ({batch_size}) and max_bad_in_a_row ({max_bad_in_a_row}) must be at least 1, "
                f"num_workers ({num_workers}) at least 0"
            )
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction must be at least 0 and below 1, got {val_fraction}")
        if not max_ahead_gb > 0:
            raise ValueError(f"max_ahead_gb must be above 0, got {max_ahead_gb}")
        if isinstance(members, str):
            raise ValueError(f"members is a list of names, such as [{members}], got the text {members!r}")
        for place, name in enumerate(members):
            # A model is given a member as an argument of its name.
            if not _MEMBER.fullmatch(name) or keyword.iskeyword(name):
                raise ValueError(
                    f"member {name!r} cannot be the name of an argument: begin with a small letter, and go on with "
                    f"small letters, digits and _"
                )
            if name in OWN_TENSORS or name in members[:place]:
                raise ValueError(
                    f"member {name!r} is named twice: a batch has {', '.join(OWN_TENSORS)} anyway, and each of "
                    f"`members` comes once"
                )
        super().__init__(
            num_workers=num_workers,
            max_bad_in_a_row=max_bad_in_a_row,
            max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share,
        )
        self.batch_size, self.val_fraction, self.decoder = batch_size, val_fraction, decoder
        self.buckets, self.shuffle, self.members = buckets, shuffle, tuple(members)
        self._asked: AskedMembers = {f"{name}.safetensors": name for name in sorted(members)}
        self._opened: OpenedSamples | None = None
        self._sizes: Mapping[str, int] = {}
        self._peers: Gather | None = None
        self.shapes: SampleShapes | None = None  #: of samples that are made up; None where they are read
        self.traffic = ReadTraffic()  #: bytes fetched and gathered by a rank that has peers

    @abstractmethod
    def _samples(self) -> "Samples":
        """Open what the batches are made of; called once."""

    def mocked(self, shapes: SampleShapes) -> Self:
        """See `HasMock`."""
        found = copy.copy(self)
        found.shapes, found._opened, found.fetches_together = shapes, None, False
        return found

    def share_with(self, peers: "Gather") -> None:
        """Let each of `peers`, which get the same slice, such as tensor-parallel ranks, fetch another part of it."""
        self._peers = peers

    def open(self, seed: int) -> "tuple[Order, EntryReader]":
        """See `ScheduledData.open`."""
        opened = self._open()
        digests = {
            name: sha256_text(f"{seed} {self.shuffle} {name} {digest}")[:16] for name, digest in opened.digests.items()
        }
        return Order(self.train_groups(), seed=seed, shuffle=self.shuffle, digests=digests), opened.reader

    def require_divisible(self, num_ranks: int) -> None:
        """See `ScheduledData.require_divisible`."""
        for group in self.train_groups():
            if group.batch_size % num_ranks:
                raise UserError(f"batch_size {group.batch_size} of {group.name} is not divisible by {num_ranks} ranks")

    def train_groups(self) -> list[BatchGroup]:
        """The samples that are trained on, by shape."""
        return [replace(g, batch_size=self._sizes.get(g.name, g.batch_size)) for g in self._open().train]

    def held_out_groups(self) -> list[BatchGroup]:
        """The samples that are held out, by shape."""
        return self._open().val

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`; also before it is started."""
        return sum(len(group.samples) for group in self.train_groups())

    def batch_sizes(self) -> dict[str, int]:
        """See `HasBatchSizes`: the general size, and those of buckets that have their own."""
        buckets = self.buckets.buckets if self.buckets is not None else {}
        own = {f"buckets.{name}.batch_size": b.batch_size for name, b in buckets.items() if b.batch_size is not None}
        return {"batch_size": self.batch_size, **own}

    def batching(self) -> dict[str, int]:
        """See `ResumableData`: the batch size of each shape."""
        return {group.name: group.batch_size for group in self.train_groups()}

    def with_batching(self, batching: Json) -> Self:
        """See `ResumableData`."""
        if other := batching.keys() ^ {group.name for group in self._open().train}:
            raise ValueError(f"the shapes of samples have changed: {', '.join(sorted(other)[:4])}")
        found = self.starting(self._begins, self._places)
        found._sizes = dict(batching)
        return found

    def train_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.train_dataloader`: with peers the same batches, of bytes that they fetch together."""
        if self._peers is None:
            return super().train_dataloader()
        from nemo_vfm.data.loader.fetch_exchange import Exchange
        from nemo_vfm.data.loader.shared_fetch import HeldSamples, UniqueBatches

        opened, batches = self._open(), self.by_number()
        held = opened.samples
        if not isinstance(held, HeldSamples):
            raise UserError(f"{held.folder} cannot be fetched in parts; ranks that share their data need shards")

        return UniqueBatches(
            batches,
            lambda i: opened.reader.entries(batches.schedule.samples(i, batches.rank, batches.num_ranks).ids), held,
            Exchange(held.inner, self._peers, self.traffic, self._asked), first=self._first_batch,
            num_workers=self.num_workers, faults=self.faults, max_ahead_bytes=int(self.max_ahead_gb * 1e9),
        )  # fmt: skip

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`; the same on every rank, the last batch of a group may be smaller."""
        opened = self._open()
        slices = [
            ShapeGroup(group.samples[first : first + group.batch_size], group.samples[0])
            for group in opened.val
            for first in range(0, len(group.samples), group.batch_size)
        ]
        return self.read_in_order(opened.reader, slices)

    def _open(self) -> "OpenedSamples":
        if self._opened is None:
            from nemo_vfm.data.loader.opened_samples import OpenedSamples

            samples, shapes = None, self.shapes
            if shapes is not None:
                from nemo_vfm.data.shards.mock_samples import MockSamples

                if self.members:
                    raise UserError(f"members ({', '.join(self.members)}) have shapes that only the files know, so "
                                    f"they cannot be made up; leave them out under data=mock: members=[]")  # fmt: skip
                samples = MockSamples(shapes, self.buckets, pixels=self.decodes or not shapes.learns_latents())
            self._opened = OpenedSamples(
                samples or self._samples(), buckets=self.buckets, decoder=self.decoder, batch_size=self.batch_size,
                val_fraction=self.val_fraction, traffic=self.traffic, asked=self._asked,
            )  # fmt: skip
        return self._opened
