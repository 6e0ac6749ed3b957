"""Reads training batches from shell commands that write tars. A recipe needs `--trust piped` to name this."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nemo_vfm.core.optional import require
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.shards.tar_stream import Tar
from nemo_vfm.data.sources.streamed import StreamedTars


class PipedTars(StreamedTars):
    """The same as `StreamedTars`, from programs: webdataset's `pipe:`. Whoever writes the recipe runs code here.

    Args:
        commands: one a tar, given to the shell, such as `curl -s https://... | zstd -d`.
        batch_size: samples of a global batch, over all ranks.
        bucket: what videos and pictures are cut to; None is for cached latents, all of one shape.
        num_workers: threads that decode on each rank; 0 reads when asked.
        shuffle_buffer: samples that are shuffled together, and held in memory, not decoded.
        counts: file that remembers how many samples each tar has; a resume then passes over whole tars.
        max_bad_in_a_row: this many unreadable samples in a row stop the run.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_member_mb: larger members of a tar are left out, in MB (10^6 bytes).
        decoder: reads videos: PyAV, decord or torchcodec; `auto` is PyAV, which also reads what another cannot.
    """

    def __init__(
        self,
        *,
        commands: Sequence[str],
        batch_size: int,
        bucket: Bucket | None = None,
        num_workers: int = 0,
        shuffle_buffer: int = 256,
        counts: WritePath | None = None,
        max_bad_in_a_row: int = 16,
        max_ahead_gb: float = 4.0,
        max_member_mb: float = 1000.0,
        decoder: Decoder = "auto",
    ) -> None:
        super().__init__(
            tars=[Path(f"{number}.tar") for number in range(len(commands))], batch_size=batch_size, bucket=bucket,
            num_workers=num_workers, shuffle_buffer=shuffle_buffer, counts=counts, max_bad_in_a_row=max_bad_in_a_row,
            max_ahead_gb=max_ahead_gb, max_member_mb=max_member_mb, decoder=decoder,
        )  # fmt: skip
        self.commands = tuple(commands)

    def _list_tars(self) -> list[Tar]:
        gopen = require("webdataset.gopen", purpose="Tars from a program").gopen
        names = (f"pipe:{command}" for command in self.commands)
        return [Tar(name, partial(gopen, name), lambda: None) for name in names]
