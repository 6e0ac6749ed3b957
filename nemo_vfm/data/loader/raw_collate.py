"""Decodes samples given as bytes by extension into batches of one shape, with the shard readers' own code."""

import math
from collections.abc import Iterable, Sequence

import torch

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.loader.collate import collate
from nemo_vfm.data.shards.read_in_place import Rows
from nemo_vfm.data.shards.sample_reader import CachedLatents, Layout, Loading, Media, Sample
from nemo_vfm.data.shards.tar_stream import Raw
from nemo_vfm.data.video.decode import Decoder


class RawReader:
    """Reads batches of one shape.

    Args:
        bucket: what videos and pictures are cut to; None takes the shape of the first latents.
        first: some samples; the first good one says what all look like.
        decoder: who reads videos.

    Raises:
        DataError: none of them is good.
    """

    def __init__(self, bucket: Bucket | None, first: Iterable[Raw], decoder: Decoder) -> None:
        self._decoder = decoder
        self._buckets = None if bucket is None else Buckets(buckets={"only": bucket})
        if bucket is not None:
            shape = (3, bucket.num_frames, bucket.height, bucket.width)
            self._layout: Layout = {"video": (torch.uint8, shape)}
        else:
            self._layout = _latent_layout(first)

    def sample_bytes(self) -> int:
        """What one sample fills in a batch."""
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._layout.values())

    def read(self, index: int, raws: Sequence[Raw]) -> Loaded:
        """One batch; a sample that cannot be read becomes a fault."""
        entries = [raw.entry for raw in raws]
        return collate(index, entries, lambda _, rows: [self._sample(raw, rows) for raw in raws], self._layout)

    def _sample(self, raw: Raw, rows: Rows) -> Sample | Fault:
        try:
            return self._loading(raw).load([raw.entry], rows)[0]
        except NemoVfmError as error:
            return Fault(raw.key, raw.tar, str(error))

    def _loading(self, raw: Raw) -> Loading:
        return CachedLatents(raw, None) if self._buckets is None else Media(raw, self._buckets, self._decoder)


def _latent_layout(first: Iterable[Raw]) -> Layout:
    reason = "they hold no sample"
    for raw in first:
        try:
            return CachedLatents(raw, None).layout(raw.entry)
        except NemoVfmError as error:
            reason = str(error)
    raise DataError(f"no latents can be read from these tars: {reason}; set a bucket to train from videos or images")
