"""Reads training batches from a CSV, JSON Lines or Parquet file that names videos and their captions."""

from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.sources.file_set import CaptionedFile, FileSet
from nemo_vfm.data.sources.table_file import check_suffix, rows_of
from nemo_vfm.data.video.media_info import facts_of_files


@needs_packages("decord", where={"decoder": "decord"})
@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class VideoTable(ListedData):
    """Batches straight from the videos and pictures that a table names, decoded and cut to buckets on the way.

    The same guarantees as `ShardData`. A file may be named more than once, with other captions; a row that is there
    twice counts once.

    Args:
        path: the table; its ending says whether it is .csv, .jsonl or .parquet.
        buckets: the shapes.
        batch_size: samples of a global batch, over all ranks; a bucket's own batch_size goes before it.
        video: name of the column with the files' paths.
        caption: name of the column with the captions; None trains without.
        root: folder that paths are relative to and may not leave; None is the table's own.
        num_workers: processes that read ahead on each rank; 0 reads in the training process.
        val_fraction: share of the files that is held out, at least 0 and below 1; by their names.
        shuffle: False gives the rows in their order.
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
        video: str = "video",
        caption: str | None = "caption",
        root: Path | None = None,
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
        check_suffix(path)
        self.path = local(path, "a table of videos")
        self.root = self.path.parent if root is None else local(root, "the folder of a table's videos")
        self.index = None if index is None else local(index, "the index of a table of videos")
        self.video, self.caption = video, caption

    def _samples(self) -> Samples:
        files = list[CaptionedFile]()
        inside, seen, left_out = self.root.resolve(), set(), {"point outside root": 0, "are duplicates": 0}
        for row in rows_of(self.path, [self.video, *([self.caption] if self.caption else [])]):
            path, text = row.path(self.video, inside), row.text(self.caption) if self.caption else ""
            if not path.is_relative_to(inside):
                left_out["point outside root"] += 1
            elif (path, text) in seen:
                left_out["are duplicates"] += 1
            else:
                seen.add((path, text))
                files.append(CaptionedFile(path.relative_to(inside).as_posix(), path, text))
        for reason, count in left_out.items():
            if count:
                warn(f"{count} rows of {self.path} are left out: they {reason}")
        if not files:
            raise UserError(f"{self.path} names no file below {self.root}; are its paths relative to root?")
        return FileSet(self.path, files, facts_of_files({file.name: file.path for file in files}, self.index))
