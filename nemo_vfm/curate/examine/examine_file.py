"""Probes one file, and examines it in one pass: its shots, their scores and their thumbnails.

A probe decodes only the first frame. An image is decoded whole, so that a damaged one fails here.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path

import cv2
import numpy as np

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import write_bytes
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.examine.frame_stream import Walk, frames_of
from nemo_vfm.curate.examine.sandbox import ChildReply
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import EXACT_DUPLICATE, FileRecord, MediaInfo
from nemo_vfm.curate.record.stage import Comparison, FileScore, LearnedStage, ReadsVectors, Score, Splitter, Stage
from nemo_vfm.curate.split.finder import Eye, Glance
from nemo_vfm.curate.split.shot_lengths import SplitsByGlances, cut_glances, in_parts, pack_glances
from nemo_vfm.data.shards.clip_id import Clip, source_id
from nemo_vfm.data.video.codecs import Decoding
from nemo_vfm.data.video.image_file import open_image
from nemo_vfm.data.video.video_info import VideoInfo
from nemo_vfm.restore.letterbox import Picture

_THUMBNAIL_HEIGHT_PX, _THUMBNAIL_WIDTH_PX = 96, 960  # a strip beyond JPEG's 65,500 pixels failed the whole file
THUMBNAIL_PAIRS = 16
_LONGEST_MESSAGE = 300
_LEAD_S = 7.0  # transitions are detected, and trimmed, from 5.5 seconds around them


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """What a child does with `{"path", "name", "image"}`: identifies the file and reads its container."""

    max_frames: int  #: a longer file is refused

    def __call__(self, request: Json, tick: Callable[[int], None]) -> Iterator[ChildReply]:
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
        except OSError as error:  # due to the disk or permissions, not the bytes: later it may be readable
            yield ChildReply({"failed": reason_of(error, path, name)})
            return
        except Exception as error:  # a decoder may raise anything on damaged bytes: one file must not stop the others
            known["message"] = reason_of(error, path, name)
        yield ChildReply(known)


def read_probed(file: FileRecord, known: Json) -> None:
    """Fill in a record from the reply of `ProbeFile`, or from `{"failed": why}`."""
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
    """The error as one line for the ledger, the same on every machine: with the file's name instead of its path."""
    text = str(error).replace(str(path.absolute()), name).replace(str(path), name)
    # FFmpeg puts its error number before the words and the file's name behind them.
    text = re.sub(r"\[Errno -?\d+\] |: '(file:)?[^']*'$", "", text)
    return " ".join((text or type(error).__name__).split())[:_LONGEST_MESSAGE]


def mark_exact_duplicates(files: Sequence[FileRecord]) -> None:
    """Of files with the same bytes, keep one that is requested whole, else the one with the shortest name.

    So "a.mp4" is kept, not "a copy.mp4". Spans that a table requests of a copy belong to the kept file, or are added
    to its own. The duration of a copy is the seconds that are there twice.
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
    """A text that changes when the file does, made without reading it; empty if there is no file.

    It includes the time of the inode's change, since programs that copy files restore the other times.
    """
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


class FileGuard:
    """Detects that a file is written to, replaced or removed while a curation works on it.

    Args:
        request: `path`, `name` and `source_id`, and as `state` the result of `state_of` when it was probed; empty for a
            fetched file, whose bytes were checked when they arrived.
    """

    def __init__(self, request: Json) -> None:
        self._path, self._name = Path(request["path"]), str(request["name"])
        self._source_id, self._state = request["source_id"], request["state"]

    def why_not(self) -> str | None:
        """A sentence if the bytes have changed. They are read only if the state differs: a `touch` is no change."""
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
        """Raise DataError if the bytes have changed."""
        if (why := self.why_not()) is not None:
            raise DataError(why)


@dataclass(frozen=True, slots=True)
class Examine:
    """What a child does with `{"path", "name", "source_id", "state", "spans": null or known spans, "stages": names}`.

    With `"stretch": [first, stop]` and no spans it examines the shots that begin in these frames, as well as can be
    decided from a few seconds before them, and its last reply has their `glances`; with spans it examines only these.
    With `"spans_s"`, seconds that a table requests, and no spans it examines those, and its last reply has `rows`, one
    fact for each. With `"image": true` the file is a still image, which is one shot.
    """

    splitter: Splitter  #: cuts it into shots, where these are not known
    stages: Mapping[str, Stage]  #: measure each shot, by name; for a learned stage, the frames it needs are sent back
    side_px: int  #: stages see frames whose short side is at most this
    thumbnails: WritePath  #: folder for `<clip id>.jpg`
    decode: Decoding = "cpu"  #: where frames are decoded, cpu or nvdec

    def __call__(self, request: Json, tick: Callable[[int], None]) -> Iterator[ChildReply]:
        """One reply per shot, and a last one that says how far the file could be read; `findings.py` has their form."""
        return _Examination(self, request, tick).replies()


class _Examination:
    """One request, and what serves it."""

    def __init__(self, settings: Examine, request: Json, tick: Callable[[int], None]) -> None:
        self._settings, self._request, self._tick = settings, request, tick
        self._path, self._name, self._unchanged = Path(request["path"]), request["name"], FileGuard(request)
        self._stages = {stage: settings.stages[stage] for stage in request["stages"]}
        vectors = any(isinstance(stage, ReadsVectors) and stage.reads_vectors() for stage in self._stages.values())
        self._walk = partial(Walk, self._path, side_px=settings.side_px, vectors=vectors, decode=settings.decode)
        self._problems: list[str] = []  # why frames cannot be decoded

    def replies(self) -> Iterator[ChildReply]:
        request = self._request
        self._unchanged.check()
        if request.get("image"):
            frames_THWC = downscale(open_image(self._path).picture_HWC, self._settings.side_px)[None]
            footage = ClipFrames(1, 1.0, lambda numbers: frames_THWC[list(numbers)], is_image=True)
            self._tick(1)
            yield self._judge(footage, Clip(request["source_id"], 0, 1, 0, 1, Fraction(1)), (0, 0))
            self._unchanged.check()
            yield ChildReply({"end": None})
        elif request.get("stretch") is not None:
            yield from self._stretch()
        else:
            with self._walk(tick=self._tick) as walk:
                if request.get("spans_s") is not None and request["spans"] is None:
                    yield from self._rows(walk)
                    return
                for span in self._spans(walk, request["spans"]):
                    self._unchanged.check()
                    yield self._look(walk, span)
                self._unchanged.check()
                lost = f"frames from {walk.num_walked} on cannot be decoded"
                rest = walk.info.why_incomplete() if walk.num_walked == walk.info.num_frames else lost
                yield ChildReply(_end(walk, self._problems[0] if self._problems else f"{self._name}: {rest}"))

    def _rows(self, walk: Walk) -> Iterator[ChildReply]:
        """Examine the spans that a table requests, each once and whole, and report the result for each row."""
        asked = [frames_of(walk.info, start_s, end_s) for start_s, end_s in self._request["spans_s"]]
        wanted, done, two_sizes = {span for span, why in asked if why is None}, set[Span](), set[Span]()
        for span in self._spans(walk, sorted(wanted)):
            self._unchanged.check()
            if walk.has_one_size(span):
                yield self._look(walk, span)
            else:
                two_sizes.add(span)
            done.add(span)
        self._unchanged.check()
        lost = self._problems[0] if self._problems else "its frames cannot be decoded"
        parts = [_part(walk.info, span, walk.info.stamp(span[0])) for span, _ in asked]
        lost_of = dict.fromkeys(two_sizes, "its frames have two sizes") | dict.fromkeys(wanted - done, lost)
        rows = [part | {"message": why or lost_of.get(span)}
                for part, (span, why) in zip(parts, asked, strict=True)]  # fmt: skip
        yield ChildReply({"end": None, "rows": rows})

    def _stretch(self) -> Iterator[ChildReply]:
        """Examine a stretch of a long video. If a frame cannot be decoded, the whole file is examined instead."""
        (first, stop), fps = self._request["stretch"], self._request["fps"]
        start = max(0, first - round(_LEAD_S * fps))
        own = count(start)

        with self._walk(  # only frames of this stretch count; a tick for any other shows that the child is alive
            tick=lambda frames: self._tick(frames if frames and first <= next(own) < stop else 0), start=start
        ) as walk:
            glances: list[Glance] = []
            if self._request["spans"] is None:
                spans = self._guess_spans(walk, start, fps, glances)
            else:
                known = [(span[0], span[1]) for span in self._request["spans"]]
                spans = _spans_given(walk, walk.frames(known[-1][1]), known)
            for span in spans:
                if span[0] >= stop:
                    break
                if span[0] >= first:
                    self._unchanged.check()
                    yield self._look(walk, span)
            self._unchanged.check()
            found = {"glances": pack_glances(glances[first - start : stop - start]), "holes": list(walk.info.holes)}
            yield ChildReply(found | _end(walk, f"{self._name}: {walk.info.why_incomplete()}"))

    def _guess_spans(self, walk: Walk, start: int, fps: float, glances: list[Glance]) -> Iterator[Span]:
        """The shots of a video if it began at this frame; every glance is kept."""
        splitter = self._settings.splitter
        assert isinstance(splitter, SplitsByGlances)

        def glance(frames: Iterator[Frame]) -> Iterator[Glance]:
            eye = Eye()
            for frame in frames:
                glances.append(eye.look(frame))
                yield glances[-1]

        holes = [hole - start for hole in walk.info.holes if hole > start]
        parts = in_parts(walk.frames(), holes, lambda part: cut_glances(glance(part), *splitter.plan(fps)))
        yield from ((start + first, start + last) for first, last in parts)

    def _spans(self, walk: Walk, known: Json) -> Iterator[Span]:
        """The shots of the part that can be decoded; a new frame size begins a new shot."""

        def frames() -> Iterator[tuple[int, Frame]]:
            try:
                yield from walk.runs(spans=known)
            except Exception as error:  # any decoder error: use what came before it, and report it
                self._problems.append(reason_of(error, self._path, self._name))

        if known is not None:
            yield from _spans_given(walk, (frame for _, frame in frames()), [(first, last) for first, last in known])
            return
        fps, holes, split = walk.info.fps, walk.info.holes, self._settings.splitter.spans
        for start, run in groupby(frames(), key=itemgetter(0)):
            own = [hole - start for hole in holes if hole > start]
            for first, last in in_parts((frame for _, frame in run), own, lambda part: split(part, fps=fps)):
                yield start + first, start + last

    def _look(self, walk: Walk, span: Span) -> ChildReply:
        info = walk.info
        clip = Clip(self._request["source_id"], *span, info.pts[span[0]], info.end_pts(span[1] - 1), info.time_base)
        span_us = elapsed_us(info, clip.pts_start), elapsed_us(info, clip.pts_end)
        footage, picture = walk.footage(span), walk.picture(span)
        found = self._judge(footage, clip, span_us, picture)
        found.fact["size"] = list(walk.size(span))
        return found

    def _judge(
        self, footage: ClipFrames, clip: Clip, span_us: tuple[int, int], picture: Picture | None = None
    ) -> ChildReply:
        path = self._settings.thumbnails / f"{clip.id}.jpg"
        if not path.exists():
            write_bytes(path, thumbnail(footage))
        fact: dict[str, Json] = {
            "span": [clip.first_frame, clip.last_frame], "pts": [clip.pts_start, clip.pts_end],
            "from_us": span_us[0], "us": span_us[1] - span_us[0], "fps": footage.fps, "found": {},
            "picture": [box.corners() if box else None for box in (picture.box, picture.lit)] if picture else None,
        }  # fmt: skip
        arrays = {}
        for name, stage in self._stages.items():
            self._tick(0)
            if isinstance(stage, LearnedStage):
                arrays[name] = footage.frames(stage.frame_indices(footage.num_frames, footage.fps))
                continue
            found: Json
            try:
                if isinstance(stage, Comparison):
                    found = {"vector": stage.remember(footage)}
                elif isinstance(stage, FileScore):  # what the file's clips get scores from
                    found = {"memory": stage.remember(footage)}
                else:
                    assert isinstance(stage, Score)
                    found = {"scores": round_scores(stage.measure(footage))}
            except MemoryError:
                raise
            except Exception as error:  # a stage that fails on a clip fails that clip alone
                found = {"message": str(error) or type(error).__name__}
            fact["found"][name] = found
        return ChildReply(fact, arrays)


def _spans_given(walk: Walk, frames: Iterable[Frame], spans: Sequence[Span]) -> Iterator[Span]:
    """The spans, ascending by their start, all of whose frames arrive; each as soon as no earlier one is waiting."""
    waiting = deque(spans)
    for _ in frames:
        while waiting and waiting[0][1] <= walk.num_walked:
            yield waiting.popleft()
    yield from (span for span in waiting if span[1] <= walk.num_walked)  # a damaged one delays no other


def round_scores(scores: Mapping[str, float | str]) -> dict[str, float | str]:
    """The scores as plain numbers of nine digits and words. A NaN is refused, since it would pass every rule.

    More digits would be noise: the last digits of sums of floats depend on the processor and on where data lie in
    memory, and the bytes of tables and shards would depend on them.
    """
    bad = {name: value for name, value in scores.items() if not isinstance(value, str) and not np.isfinite(value)}
    if bad:
        raise ValueError(f"it returned {bad}, which are not numbers")
    return {name: value if isinstance(value, str) else float(f"{value:.9g}") for name, value in scores.items()}


def _end(walk: Walk, message: str) -> Json:
    """How far the file could be read, and the rest of it, if there is one."""
    info, first = walk.info, walk.num_walked
    last = info.num_frames + info.missing_frames
    if first >= last:
        return {"end": None}
    seen = info.end_pts(first - 1) if first else info.pts[0]  # a gap before the rest is lost with it
    return {"end": _part(info, (first, last), seen) | {"message": message}}


def _part(info: VideoInfo, span: Span, from_pts: int) -> dict[str, Json]:
    """A part of the video that is missing or is no clip."""
    us = elapsed_us(info, info.stamp(span[1])) - elapsed_us(info, from_pts)
    return {"span": list(span), "pts": [info.stamp(span[0]), info.stamp(span[1])], "us": us, "fps": info.fps}


def downscale(picture_HWC: Frame, side_px: int) -> Frame:
    """The picture, scaled down if its short side is longer than this."""
    height, width = picture_HWC.shape[:2]
    ratio = side_px / min(height, width)
    if ratio >= 1:
        return picture_HWC
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    return np.asarray(cv2.resize(picture_HWC, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def thumbnail(footage: ClipFrames) -> bytes:
    """Four frames side by side, as JPEG; a still image is shown alone."""
    num_frames = 1 if footage.is_image else 4
    pairs = footage.pairs(THUMBNAIL_PAIRS)  # frames that stages use anyway
    chosen = footage.frames([pairs[place] for place in np.linspace(0, len(pairs) - 1, num_frames).round().astype(int)])
    height, width = chosen.shape[1:3]
    size = (min(_THUMBNAIL_WIDTH_PX, max(1, round(width * _THUMBNAIL_HEIGHT_PX / height))), _THUMBNAIL_HEIGHT_PX)
    strip = np.hstack([cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in chosen])
    done, data = cv2.imencode(".jpg", cv2.cvtColor(strip, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])
    assert done
    return data.tobytes()
