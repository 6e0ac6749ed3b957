# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One readable file in; its shots, every stage's numbers about each, and a thumbnail of each out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from nemo_vfm.core.files import write_bytes
from nemo_vfm.core.types import Json
from nemo_vfm.curate.footage import Footage, by_number
from nemo_vfm.curate.ledger import FileRecord
from nemo_vfm.curate.probe import elapsed_us, reason_of
from nemo_vfm.curate.stage import ClipRecord, Comparison, Frame, Score, Span, Splitter, Stage
from nemo_vfm.data.decode import VideoInfo, open_video
from nemo_vfm.data.sample import Clip

_THUMBNAIL_HEIGHT_PX = 96
_FRAME_SIDE_PX = 256


@dataclass(frozen=True)
class Examiner:
    """What is done to every file. Two walks over its frames: shots first, then what each shot looks like.

    Args:
        splitter: cuts it into shots.
        stages: measure each shot.
        thumbnails: folder for `<clip id>.jpg`.
        tick: called once for each frame walked over.
    """

    splitter: Splitter
    stages: Mapping[str, Stage]
    thumbnails: Path
    tick: Callable[[], None]

    def examine(self, file: FileRecord) -> Json:
        """All that is found out about a file, as the cache keeps it. Never raises on account of the file."""
        assert file.info is not None
        spans, message = self._split(file)
        num_read = spans[-1][1] if spans else 0
        clips = [self._clip(file, span) for span in spans]
        self._measure(file, clips)
        if num_read < file.info.num_frames:
            rest = self._clip(file, (num_read, file.info.num_frames))
            rest["message"] = message or f"{file.found.name}: frames from {num_read} on cannot be decoded"
            clips.append(rest)
        return clips

    def _split(self, file: FileRecord) -> tuple[list[Span], str | None]:
        """The shots of what can be decoded, and why the rest cannot."""
        assert file.info is not None
        problems: list[str] = []

        def frames() -> Iterator[Frame]:
            try:
                with open_video(file.found.path, "pyav") as reader:
                    for frame in reader.frames():
                        self.tick()
                        yield frame
            except Exception as error:  # any decoder error: use what came before it, and say so
                problems.append(reason_of(error, file.found))

        spans = list(self.splitter.spans(frames(), fps=file.info.fps))
        return spans, problems[0] if problems else None

    @staticmethod
    def _clip(file: FileRecord, span: Span) -> Json:
        return {"first_frame": span[0], "last_frame": span[1], "scores": {}, "vectors": {}, "message": None}

    def _measure(self, file: FileRecord, clips: list[Json]) -> None:
        """Fill in scores and vectors and write thumbnails, clip after clip."""
        assert file.info is not None
        try:
            with open_video(file.found.path, "pyav") as reader:
                frames = reader.frames(0, clips[-1]["last_frame"] if clips else 0)
                for clip in clips:
                    span = (clip["first_frame"], clip["last_frame"])
                    footage = collect(frames, span, file.info.fps, self.tick)
                    self._look(clip, footage, to_record(file, clip).clip.id)
        except Exception as error:  # the decoder went back on the first walk: these clips fail, the others stand
            for clip in clips:
                if not clip["scores"] and clip["message"] is None:
                    clip["message"] = reason_of(error, file.found)

    def _look(self, clip: Json, footage: Footage, clip_id: str) -> None:
        write_bytes(self.thumbnails / f"{clip_id}.jpg", thumbnail(footage))
        for name, stage in self.stages.items():
            try:
                if isinstance(stage, Score):
                    clip["scores"] |= finite(stage.measure(footage))
                elif isinstance(stage, Comparison):
                    clip["vectors"][name] = stage.remember(footage)
            except Exception as error:  # a stage that cannot cope with a clip costs that clip only
                clip["message"] = f"stage {name}: {error}"
                return


def finite(scores: Mapping[str, float | str]) -> dict[str, float | str]:
    """Plain numbers, or a sentence: a NaN would slip through every rule, since it is neither below nor above."""
    bad = {name: value for name, value in scores.items() if not isinstance(value, str) and not np.isfinite(value)}
    if bad:
        raise ValueError(f"it gave {bad}, which are not numbers")
    return {name: value if isinstance(value, str) else float(value) for name, value in scores.items()}


def to_record(file: FileRecord, found: Json, paths: tuple[Path, ...] = ()) -> ClipRecord:
    """What was found out about a clip, joined with what is known of its file."""
    info, first, last = file.info, found["first_frame"], found["last_frame"]
    assert info is not None
    clip = Clip(file.source_id, first, last, info.pts[first], info.end_pts(last - 1), info.time_base)
    duration_us = elapsed_us(info, last) - elapsed_us(info, first)
    return ClipRecord(
        clip, file.found.name, paths or (file.found.path,), info.fps, info.width, info.height, duration_us,
        scores=dict(found["scores"]), vectors=dict(found["vectors"]), message=found["message"],
    )  # fmt: skip


def collect(frames: Iterator[Frame], span: Span, fps: float, tick: Callable[[], None]) -> Footage:
    """Take a span's frames off the iterator, small."""
    kept: dict[int, Frame] = {}
    for number, frame in zip(range(span[1] - span[0]), islice(frames, span[1] - span[0]), strict=True):
        tick()
        kept[number] = shrink(frame)
    return Footage(len(kept), fps, by_number(kept))


def shrink(frame: Frame) -> Frame:
    """The frame with a short side of at most 256 pixels."""
    height, width = frame.shape[:2]
    ratio = _FRAME_SIDE_PX / min(height, width)
    if ratio >= 1:
        return frame.copy()
    size = (round(width * ratio), round(height * ratio))
    return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def thumbnail(footage: Footage, num_frames: int = 4) -> bytes:
    """A strip of frames side by side, as JPEG."""
    pairs = footage.pairs(16)
    chosen = footage.frames([pairs[place] for place in np.linspace(0, len(pairs) - 1, num_frames).round().astype(int)])
    height, width = chosen.shape[1:3]
    size = (max(1, round(width * _THUMBNAIL_HEIGHT_PX / height)), _THUMBNAIL_HEIGHT_PX)
    strip = np.hstack([cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in chosen])
    done, data = cv2.imencode(".jpg", cv2.cvtColor(strip, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])
    assert done
    return data.tobytes()


def num_frames_walked(info: VideoInfo) -> int:
    """How often `tick` is called for a healthy file."""
    return 2 * info.num_frames
