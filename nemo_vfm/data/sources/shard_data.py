"""Reads folders of shards as global batches for training and fixed batches for validation.

Lightning is not imported here, which keeps `check` quick: the import takes about 5 s (2 cores, 2026-11).
`lightning_data.py` wraps the same data as a LightningDataModule.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_vfm.core.log import info
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.uri import Address, Place, places
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.shard_cache import ShardCache

if TYPE_CHECKING:
    from nemo_vfm.data.shards.sample_reader import Samples


@needs_packages("decord", where={"decoder": "decord"})
@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class ShardData(ListedData):
    """Batches from folders of shards: cached latents, or videos and images cut to buckets.

    The samples of global batch g are a function of the shards, the seed and g: not of workers, ranks or resumes.

    Args:
        shards: folder that curation or its encode step wrote, here or in an object store (`s3://bucket/folder`), or any
            folder of WebDataset tars on a disk; or single tars of one, by number:
            `s3://bucket/train/shard-{000000..000127}.tar`; or a list of such.
        batch_size: samples of a global batch, over all ranks; a bucket's own batch_size goes before it.
        num_workers: processes that read ahead on each rank; 0 reads in the training process.
        val_fraction: share of the samples that is held out, at least 0 and below 1; which part a sample is in follows
            from its key, and from its clip's where it is a window of one.
        buckets: the shapes; None is for cached latents only, whose shapes are what they are.
        shuffle: False gives the samples in the order of the shards.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        cache: keeps whole shards of an object store on the disk; None reads them by ranges of bytes.
        verify: compares all that is read of a sample with the checksums in the index, which finds damage that nothing
            else does; a sample that differs is a bad one, and a shard that is written to meanwhile stops the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: what the workers of a machine may grow by together, of its memory; a rank's are replaced
            between batches when one of them grows by more than its part. None lets them grow.
        decoder: reads videos: PyAV, decord or torchcodec; `auto` is PyAV, which also reads what another cannot.
        fetch_together: ranks that train on the same samples (tensor, context, pipeline) each fetch another part of a
            batch and exchange the parts, so that the storage gives each byte once.
        members: what else is read of each sample, by name: of `actions`, the one tensor in its `actions.safetensors`,
            of one dtype and shape within a bucket. The model is given each as an argument of its name; samples that
            lack one are left out.
    """

    decodes = False

    def __init__(
        self,
        *,
        shards: Place | Sequence[Place],
        batch_size: int,
        num_workers: int = 0,
        val_fraction: float = 0.0,
        buckets: Buckets | None = None,
        shuffle: bool = True,
        max_bad_in_a_row: int = 16,
        cache: ShardCache | None = None,
        verify: bool = False,
        max_ahead_gb: float = 4.0,
        max_memory_share: float | None = 0.5,
        decoder: Decoder = "auto",
        fetch_together: bool = False,
        members: Sequence[str] = (),
    ) -> None:
        super().__init__(
            batch_size=batch_size, num_workers=num_workers, val_fraction=val_fraction, buckets=buckets,
            shuffle=shuffle, max_bad_in_a_row=max_bad_in_a_row, max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share, decoder=decoder, members=members,
        )  # fmt: skip
        self.shards, self.cache, self.verify = places(shards), cache, verify
        if not self.shards:
            raise ValueError("shards is an empty list, expected at least one folder or tar")
        self.fetches_together = fetch_together

    def _samples(self) -> "Samples":
        from nemo_vfm.data.shards.shard_paths import named_shards

        if self.cache is None and any(isinstance(where, Address) for where in self.shards):
            info("an object store is read by byte ranges; if it fits on a local disk, a cache is much faster")
        return named_shards(self.shards, self.cache, verify=self.verify)
