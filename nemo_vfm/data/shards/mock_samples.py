"""Makes up the samples of a data set: latents with text embeddings, or pixels with captions, in the recipe's buckets.

Numbers are copied from one pool of normal ones, from a place that follows from the sample's key: to draw the 200 MB of
a large video's latents would take longer than the step that learns from them.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import derive, generator
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.shards.read_in_place import Rows
from nemo_vfm.data.shards.safetensors_views import TensorView
from nemo_vfm.data.shards.sample_members import LATENTS, TEXT
from nemo_vfm.data.shards.sample_reader import Layout, LoadedSample
from nemo_vfm.data.shards.shard_files import Entry

_SEED = 0  # of the numbers; what a run draws itself depends on its own
_POOL = (1 << 18) + 1  # numbers; odd, so that rows of a power of two are not all alike
_FPS = 24.0


class MockSamples:
    """Samples that lie nowhere: a list of entries as of shards, and how they are loaded.

    Args:
        shapes: what the model and the task read.
        buckets: the shapes of videos; None makes latents of no bucket.
        pixels: whether samples are videos; else they are latents.

    Raises:
        UserError: pixels without buckets.
    """

    is_light = True  #: see `SampleReader.is_light`
    folder = "the made-up data"  #: see `Samples.folder`

    def __init__(self, shapes: SampleShapes, buckets: Buckets | None, *, pixels: bool) -> None:
        self._buckets, self._labels = buckets, dict(shapes.labels())
        self._layouts: dict[str, Layout] = {}
        if pixels:
            if buckets is None:
                raise UserError("videos can only be made up in the shapes of buckets; give data.buckets")
            for name, one in buckets.buckets.items():
                self._layouts[name] = {"video": (torch.uint8, (3, one.num_frames, one.height, one.width))}
        else:
            text = shapes.text()
            own: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
            if text is not None:
                own = {"text": (torch.float32, text), "mask": (torch.bool, text[:1])}
            for name, shape in shapes.latents(buckets).items():
                self._layouts[name] = {"latents": (torch.float32, shape), **own}
        members = ("mp4",) if pixels else (LATENTS, TEXT)
        rates = {name: (one.fps or _FPS) if one.num_frames > 1 else 1.0
                 for name, one in ({} if buckets is None else buckets.buckets).items()}  # fmt: skip
        self.entries = tuple(
            Entry(f"made-up-{name or 'sample'}-{number:06d}", "made-up", dict.fromkeys(members, (0, 0)),
                  {"bucket": name, "fps": rates.get(name, _FPS), "caption": f"made-up sample {number}"})
            for name in self._layouts for number in range(shapes.num_samples)
        )  # fmt: skip

    def read(self, entry: Entry, extension: str) -> bytes:
        """See `Samples.read`; nothing asks, since tensors are made and not read."""
        raise AssertionError(f"{extension} of {entry.key} is made up and has no bytes")

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """See `read`."""
        return [self.read(entry, extension) for extension in extensions]

    def group_of(self, entry: Entry) -> tuple[str | None, str]:
        """The bucket."""
        return entry.index["bucket"], ""

    def batch_size_of(self, group: str) -> int | None:
        """See `CachedLatents.batch_size_of`."""
        bucket = self._buckets.buckets.get(group) if self._buckets else None
        return bucket.batch_size if bucket else None

    def layout(self, entry: Entry) -> Layout:
        """See `CachedLatents.layout`."""
        return self._layouts[entry.index["bucket"]]

    def load(self, entries: Sequence[Entry], rows: Rows) -> list[LoadedSample | Fault]:
        """See `CachedLatents.load`; all tensors are made in their rows."""
        found: list[LoadedSample | Fault] = []
        for place, entry in enumerate(entries):
            tensors = {}
            for name, (dtype, shape) in self.layout(entry).items():
                row: NDArray[np.uint8] = rows[name][place]
                seed = derive(_SEED, "made up", entry.key, name)
                if dtype == torch.bool:  # a mask: some first tokens are real
                    row[:] = np.arange(len(row)) <= seed % len(row)
                else:
                    pool = _pool(dtype).view(np.uint8)
                    size = dtype.itemsize
                    begin, done = seed % _POOL * size, 0
                    while done < len(row):
                        count = min(len(row) - done, len(pool) - begin)
                        row[done : done + count] = pool[begin : begin + count]
                        begin, done = 0, done + count
                tensors[name] = TensorView(dtype, shape, row)
            found.append(LoadedSample(tensors, entry.index["caption"], entry.index["fps"], self._labels))
        return found


@cache  # of one process
def _pool(dtype: torch.dtype) -> NDArray[np.generic]:
    drawn = torch.randn(_POOL, generator=generator(_SEED, "made-up pool"))
    if dtype == torch.uint8:
        return (128 + 50 * drawn).clamp(0, 255).to(torch.uint8).numpy()
    return drawn.to(dtype).numpy()
