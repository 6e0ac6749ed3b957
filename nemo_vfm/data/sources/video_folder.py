"""Reads training batches from a folder of videos and images with captions beside them, without shards."""

from pathlib import Path

from nemo_vfm.core.log import warn_once
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.folder_walk import text_name
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.sample_members import caption_in, texts_beside
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.sources.file_set import CaptionedFile, FileSet, media_files
from nemo_vfm.data.video.media_info import facts_of_files

_MAX_CAPTION_BYTES = 1 << 20


@needs_packages("decord", where={"decoder": "decord"})
@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class VideoFolder(ListedData):
    """Batches straight from a folder of videos and pictures, decoded and cut to buckets as they are asked for.

    The same guarantees as `ShardData`. A long video gives one sample, from its middle: curation cuts it into clips.
    The caption of `a/x.mp4` is that of the first that has one of `x.mp4.json`, `x.json`, `x.mp4.txt`, `x.txt`, and the
    same with `.text` and `.caption`; of a JSON file it is its `caption`. Links are followed while they stay inside the
    folder. Files are looked at once; those that changed are looked at again.

    Args:
        path: the folder, with all folders below it.
        buckets: the shapes.
        batch_size: samples of a global batch, over all ranks; a bucket's own batch_size goes before it.
        num_workers: processes that read ahead on each rank; 0 reads in the training process.
        val_fraction: share of the files that is held out, at least 0 and below 1; by their names.
        shuffle: False gives the files in the order of their names.
        max_bad_in_a_row: this many unreadable files in a row stop the run.
        index: file where sizes, lengths and rates are kept from one start to the next; None looks at all files at
            every start.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: what the workers of a machine may grow by together, of its memory; a rank's are replaced
            between batches when one of them grows by more than its part. None lets them grow.
        decoder: reads videos: PyAV, decord or torchcodec; `auto` is PyAV, which also reads what another cannot.
    """

    def __init__(
        self,
        *,
        path: Path,
        buckets: Buckets,
        batch_size: int,
        num_workers: int = 0,
        val_fraction: float = 0.0,
        shuffle: bool = True,
        max_bad_in_a_row: int = 16,
        index: WritePath | None = None,
        max_ahead_gb: float = 4.0,
        max_memory_share: float | None = 0.5,
        decoder: Decoder = "auto",
    ) -> None:
        super().__init__(
            batch_size=batch_size, num_workers=num_workers, val_fraction=val_fraction, buckets=buckets,
            shuffle=shuffle, max_bad_in_a_row=max_bad_in_a_row, max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share, decoder=decoder,
        )  # fmt: skip
        self.path = local(path, "a folder of videos to train from")
        self.index = None if index is None else local(index, "the index of a folder of videos")

    def _samples(self) -> Samples:
        paths = {text_name(path, self.path): path for path in media_files(self.path)}
        facts = facts_of_files(paths, self.index)
        return FileSet(
            self.path,
            [CaptionedFile(name, path, caption_beside(path, self.path)) for name, path in paths.items()],
            facts,
        )


def caption_beside(media: Path, root: Path) -> str:
    """What the first file beside the video that has a caption says; empty where there is none below `root`."""
    for path in texts_beside(media, root):
        try:
            if path.stat().st_size > _MAX_CAPTION_BYTES:
                raise ValueError(f"it is larger than {_MAX_CAPTION_BYTES >> 20} MiB")
            if caption := caption_in(path.name, path.read_bytes()):
                return caption
        except (OSError, ValueError, RecursionError) as error:
            warn_once(f"{path} is not used for captions: {error}")
    return ""
