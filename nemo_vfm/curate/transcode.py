# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Kept clips in, one H.264 mp4 a clip of exactly its frames out."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_vfm.core.errors import DataError, StoreDenied
from nemo_vfm.curate.cache import fingerprint
from nemo_vfm.curate.ledger import FileRecord
from nemo_vfm.curate.probe import reason_of
from nemo_vfm.curate.stage import ClipRecord
from nemo_vfm.data.decode import VideoReader, open_video
from nemo_vfm.data.encode import encode_mp4


class Transcode:
    """Encodes clips with x264 at constant quality, at the source's mean frame rate, upright.

    Args:
        crf: 0 (largest) to 51; 18 is hard to tell from the source.
        preset: x264's name for how long it may take.
    """

    def __init__(self, *, crf: int = 18, preset: str = "medium") -> None:
        if not 0 <= crf <= 51:
            raise ValueError(f"crf is {crf}, but x264 takes 0 to 51")
        self.crf, self.preset = crf, preset

    def path(self, folder: Path, record: ClipRecord) -> Path:
        """Where a clip encoded with these settings lies."""
        return folder / f"{record.clip.id}-{fingerprint(self)[:8]}.mp4"

    def encode(
        self, file: FileRecord, records: Sequence[ClipRecord], folder: Path, tick: Callable[[int], None]
    ) -> None:
        """Encode those clips of one file that are not there yet; one that cannot be gets a message."""
        missing = [record for record in records if not self.path(folder, record).exists()]
        tick(sum(r.clip.num_frames for r in records) - sum(r.clip.num_frames for r in missing))
        if not missing:
            return
        try:
            with file.found.here() as path, open_video(path, "pyav") as reader:
                self._all(reader, missing, file, folder, tick)
        except (DataError, StoreDenied) as error:  # it was there when it was probed
            for record in missing:
                record.message = record.message or reason_of(error, file.found)

    def _all(
        self, reader: VideoReader, missing: Sequence[ClipRecord], file: FileRecord, folder: Path,
        tick: Callable[[int], None],
    ) -> None:  # fmt: skip
        for record in missing:
            try:
                self._one(reader, record, folder)
            except Exception as error:  # one clip's trouble must not cost the others
                record.message = reason_of(error, file.found)
            tick(record.clip.num_frames)

    def _one(self, reader: VideoReader, record: ClipRecord, folder: Path) -> None:
        frames = reader.frames(record.clip.first_frame, record.clip.last_frame)
        target = self.path(folder, record)
        written = encode_mp4(target, frames, record.fps, crf=self.crf, preset=self.preset)
        if written != record.clip.num_frames:
            target.unlink()
            raise ValueError(f"{record.source}: {written} of {record.clip.num_frames} frames could be encoded")
