"""Probes one file: its id, what its container says, or why it cannot be used; and checks later that it is unchanged.

Only its first frame is decoded. An image is decoded whole, so that a damaged one fails here.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.sandbox import Reply
from nemo_vfm.curate.record.ledger import EXACT_DUPLICATE, FileRecord
from nemo_vfm.curate.record.stage import MediaInfo
from nemo_vfm.data.shards.clip_id import source_id
from nemo_vfm.data.video.video_info import VideoInfo

_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Probe:
    """Identifies files and reads their containers: what a child does with `{"path", "name", "image"}`."""

    max_frames: int  #: a longer file is refused

    def __call__(self, request: Json, tick: Callable[[int], None]) -> Iterator[Reply]:
        """One reply: the fields of `MediaInfo`, source_id and duration_us, or `message`; see `read_probed`."""
        from nemo_vfm.data.video.image_file import is_deep, open_image
        from nemo_vfm.data.video.pyav_reader import PyAVReader

        path, name = Path(request["path"]), request["name"]
        known: dict[str, Json] = {"source_id": ""}
        try:
            known["source_id"] = source_id(path)
            if request.get("image"):
                image = open_image(path)
                known |= {
                    "num_frames": 1, "fps": 1.0, "width": image.width, "height": image.height, "codec": image.format,
                    "time_base": [1, 1], "duration_us": 0, "is_deep": is_deep(image.data),
                }  # fmt: skip
            else:
                with PyAVReader(path) as reader:
                    info = reader.info()
                known |= {
                    "num_frames": info.num_frames, "fps": info.fps, "width": info.width, "height": info.height,
                    "codec": info.codec, "time_base": [info.time_base.numerator, info.time_base.denominator],
                    "duration_us": elapsed_us(info, info.stamp(info.num_frames + info.missing_frames)),
                }  # fmt: skip
            if known["num_frames"] > self.max_frames:
                known["message"] = (
                    f"{name} has {known['num_frames']:,} frames, more than max_frames {self.max_frames:,}"
                )
        except MemoryError:
            raise
        except OSError as error:  # of the disk or its rights, not of the bytes: another day it may be read
            yield Reply({"failed": reason_of(error, path, name)})
            return
        except Exception as error:  # a decoder may raise anything on damaged bytes: one file must not stop the others
            known["message"] = reason_of(error, path, name)
        yield Reply(known)


def read_probed(file: FileRecord, known: Json) -> None:
    """Fill in a record from the reply of `Probe`, or from `{"failed": why}`."""
    if "failed" in known:
        file.message = f"{file.found.name}: {known['failed']}"
        return
    file.source_id, file.message = known["source_id"], known.get("message")
    if "num_frames" in known:
        file.duration_us = known["duration_us"]
        file.info = MediaInfo(
            known["num_frames"], known["fps"], known["width"], known["height"], known["codec"],
            Fraction(*known["time_base"]), known.get("is_deep", False),
        )  # fmt: skip


def reason_of(error: Exception, path: Path, name: str) -> str:
    """An error as one line of the ledger, with the file's name in place of its path, so that it is equal everywhere."""
    text = str(error).replace(str(path.absolute()), name).replace(str(path), name)
    # FFmpeg puts its own error number and, once more, the file in front of and behind the words.
    text = re.sub(r"\[Errno -?\d+\] |: '(file:)?[^']*'$", "", text)
    return " ".join((text or type(error).__name__).split())[:_LONGEST_MESSAGE]


def mark_exact_duplicates(files: Sequence[FileRecord]) -> None:
    """Of files with the same bytes, one that is wanted whole stays, then the one with the shortest name.

    So "a.mp4" stays, not "a copy.mp4"; and spans that a table asks for are a part of the film that stays, else it gets
    them: they may be other ones. A copy counts with the seconds that are there twice.
    """
    seen: dict[str, FileRecord] = {}
    for file in sorted(files, key=lambda file: (file.found.spans_s is not None, len(file.found.name), file.found.name)):
        original = seen.setdefault(file.source_id, file)
        if file.message is None and file.rule is None and original is not file:
            file.rule, file.duplicate_of = EXACT_DUPLICATE, original.found.name
            if (spans_s := file.found.spans_s) is None:
                continue
            theirs_s = original.found.spans_s
            file_us, file.duration_us = file.duration_us, 0
            for start_s, end_s in spans_s:
                if theirs_s is None or (start_s, end_s) in theirs_s:
                    file.duration_us += max(0, min(file_us, round(min(end_s, 1e9) * 1e6)) - round(start_s * 1e6))
            if theirs_s is not None:
                rows = {row.seconds: row for row in (*file.found.rows, *original.found.rows)}
                original.found = replace(original.found, rows=tuple(rows.values()))


def elapsed_us(info: VideoInfo, pts: int) -> int:
    """Microseconds from the start of the video to a time stamp, rounded down.

    Differences of these are a clip's duration: rounded so, the clips of a file and what lies between them sum to
    exactly the file's.
    """
    return int((pts - info.pts[0]) * info.time_base * 1_000_000)


def state_of(path: Path) -> str:
    """What changes when a file does, told without reading it; empty where there is no file.

    The time of the inode's change is in it: programs that copy files set the other times to what they were.
    """
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


class Unchanged:
    """Tells a file that is written to, exchanged or removed while a curation works on it.

    Args:
        request: `path`, `name` and `source_id`, and as `state` what `state_of` said when it was probed; empty where the
            file is a fetched one, whose bytes were compared as they came.
    """

    def __init__(self, request: Json) -> None:
        self._path, self._name = Path(request["path"]), str(request["name"])
        self._source_id, self._state = request["source_id"], request["state"]

    def why_not(self) -> str | None:
        """A sentence where the bytes are others by now. They are read only where the state differs: a touch is none."""
        if not self._state or (state := state_of(self._path)) == self._state:
            return None
        try:
            same = source_id(self._path) == self._source_id
        except OSError as error:
            return f"{self._name} can no longer be read ({os.strerror(error.errno or 0)}); run it again"
        if not same:
            return f"{self._name} was changed after it was examined; run again"
        self._state = state
        return None

    def check(self) -> None:
        """Raise DataError where the bytes are others by now."""
        if (why := self.why_not()) is not None:
            raise DataError(why)
