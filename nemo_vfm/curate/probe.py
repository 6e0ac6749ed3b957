# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One file in; its id, what its container says, or why it cannot be used, out. Only its first frame is decoded."""

import re
from collections.abc import Sequence

from nemo_vfm.core.errors import StoreUnreachable
from nemo_vfm.curate.ledger import EXACT_DUPLICATE, FileRecord
from nemo_vfm.curate.stage import Found
from nemo_vfm.data.decode import VideoInfo, open_video
from nemo_vfm.data.sample import source_id

_LONGEST_MESSAGE = 300


def reason_of(error: Exception, found: Found) -> str:
    """An error as one line of the ledger, with the file's name in place of its path, so that it is equal everywhere."""
    text = str(error).replace(str(found.path.absolute()), found.name).replace(str(found.path), found.name)
    # FFmpeg puts its own error number and, once more, the file in front of and behind the words.
    text = re.sub(r"\[Errno -?\d+\] |: '(file:)?[^']*'$", "", text)
    return " ".join((text or type(error).__name__).split())[:_LONGEST_MESSAGE]


def probe(found: Found, *, max_frames: int) -> FileRecord:
    """Identify a file and read its container. Never raises on account of the file.

    Raises:
        StoreUnreachable: the store of the file does not answer.
    """
    record = FileRecord(found)
    try:
        with found.here() as path:
            record.source_id = source_id(path)
            with open_video(path, "pyav") as reader:
                record.info = reader.info()
        record.duration_us = elapsed_us(record.info, record.info.num_frames)
        if record.info.num_frames > max_frames:
            record.message = f"{found.name} has {record.info.num_frames:,} frames, more than max_frames {max_frames:,}"
    except StoreUnreachable:
        raise  # every other file would fail, too: the run stops, and goes on when the store is back
    except Exception as error:  # a decoder may raise anything on damaged bytes, and one file must not stop the others
        record.message = reason_of(error, found)
    return record


def mark_exact_duplicates(files: Sequence[FileRecord]) -> None:
    """Of files with the same bytes, the one with the shortest name stays ("a.mp4", not "a copy.mp4")."""
    seen: set[str] = set()
    for file in sorted(files, key=lambda file: (len(file.found.name), file.found.name)):
        if file.message is None and file.source_id in seen:
            file.rule = EXACT_DUPLICATE
        seen.add(file.source_id)


def elapsed_us(info: VideoInfo, frame: int) -> int:
    """Microseconds from the start of the video to the start of a frame, rounded down.

    Differences of these are a clip's duration: rounded so, the clips of a file sum to exactly the file's.
    """
    stamp = info.pts[frame] if frame < info.num_frames else info.end_pts(info.num_frames - 1)
    return int((stamp - info.pts[0]) * info.time_base * 1_000_000)
