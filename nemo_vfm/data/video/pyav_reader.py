# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the packet order and the frames of a video through PyAV, which reads every format."""

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import av.error
import numpy as np
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.stream import Disposition
from av.video.reformatter import VideoReformatter

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.media_types import Frame, Frames
from nemo_vfm.data.video.codecs import NVDEC_CODECS, Decoding
from nemo_vfm.data.video.decode import MAX_FRAME_PX, MAX_FRAMES, VideoInfo, check_indices, check_size, name_of
from nemo_vfm.data.video.deinterlace import progressive
from nemo_vfm.data.video.square_pixels import square_size
from nemo_vfm.data.video.truncated_file import Shown, without_gap

# Playlists and concatenations name other files and addresses; opening one must not reach beyond the bytes given.
_FORMATS = (
    "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,ivf,obu,flv,ogg,asf,gif,png_pipe,jpeg_pipe,mjpeg,mxf,"
    "yuv4mpegpipe"
)
OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "file", "max_pixels": str(MAX_FRAME_PX)}
# Once more for the decoder itself: options given on opening do not reach it, and a picture can be larger than the
# header says (one of 16000x16000 in VP8 of 128x96 took 370 MB and a second before its size was seen).
_DECODER_OPTIONS = {"max_pixels": str(MAX_FRAME_PX)}
# Where this PyAV can be told; an older one has no threads there.
_ONE_THREAD = {"threads": 1} if "threads=" in (VideoReformatter.reformat.__doc__ or "") else {}
# PyAV looks a packet's stream up among those that were there on opening; MPEG-TS can get more on the way.
LATE_STREAM = "starts another stream part-way, which cannot be read; cut or remux the file"
_CORRUPT, _INTERLACED, _HALF_THERE = 1, 2, 4
_SEEK_FRAMES = 4  # a seek costs about what decoding this many frames does (320x192 to 1280x720, H.264, 2026-11)


@dataclass(frozen=True, slots=True)
class PacketIndex:
    """What a walk over all packets of a file tells.

    Args:
        info: see `VideoReader.info`.
        keyframes: their indices, ascending.
        stored: width and height of the decoder's frames.
        is_counted: time stamps come twice, or are missing: frames go by their number.
        marks: of each frame, whether half of its packet is missing.
    """

    info: VideoInfo
    keyframes: list[int]
    stored: tuple[int, int]
    is_counted: bool
    marks: bytes


#: Of the file that this process walked over last. One after another many ask for the same: every stretch of a long
#: film and every clip whose frames are no longer held. An hour of 854x480 has 86,400 packets: 0.76 s, and decoding the
#: hour takes 84 s, so that 32 stretches would spend a quarter of their time on walks.
_LATEST: list[tuple[tuple[object, ...], PacketIndex]] = []


@no_component
class PyAVReader:
    """See `VideoReader`. `read` and `frames` share one decoder: use one of them at a time.

    Args:
        source: a path, or the file's bytes.
        vectors: the decoder gives the motion vectors of each frame, too, where the codec has them; NVDEC gives none.
        decode: where frames are decoded. `nvdec`, a GPU's decoder, takes the codecs of `NVDEC_CODECS` and leaves others
            to the CPU. Its pixels may be others than the CPU's, so what was made with one is not taken for the other.
            It was written without a GPU at hand and has run on none.
    """

    def __init__(self, source: Path | bytes, *, vectors: bool = False, decode: Decoding = "cpu") -> None:
        self._source, self._name, self._vectors = source, name_of(source), vectors
        self._wanted: Decoding = decode
        self.decode: Decoding = "cpu"  # looking over a file is the CPU's in any case
        self._container: InputContainer | None = None
        self._process = 0
        self._info: VideoInfo | None = None
        self._keyframes: list[int] = []
        self._stored = 0, 0  # width and height of the decoder's frames
        self._is_counted = False  # time stamps come twice, or are missing: frames go by their number
        self._marks = bytearray()  # of each frame that was decoded
        # One for all frames, since a frame's own is made anew each time, and with threads of its own: a third of the
        # time of decoding to RGB at 320x192, and threads do not survive a fork.
        self._to_rgb = VideoReformatter()
        self._opened()

    def __enter__(self) -> "PyAVReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._container is not None and self._process == os.getpid():
            self._container.close()
        self._container = None

    def info(self) -> VideoInfo:
        """See `VideoReader.info`."""
        if self._info is None:
            try:
                self._info = self._remembered() or self._walk()
            except (av.error.FFmpegError, EOFError, ArithmeticError) as error:
                raise DataError(f"{self._name} is damaged: {error}") from error
            except IndexError as error:
                raise DataError(f"{self._name} {LATE_STREAM}") from error
            if self._wanted == "nvdec" and self._info.codec in NVDEC_CODECS:
                self.close()
                self.decode = "nvdec"
        return self._info

    def _state(self) -> tuple[object, ...]:
        """Which file this is, and which of its states; of bytes there is no name to remember them by."""
        if isinstance(self._source, bytes):
            return ()
        status = self._source.stat()
        return str(self._source.absolute()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _remembered(self) -> VideoInfo | None:
        state = self._state()
        index = next((index for known, index in _LATEST if state and known == state), None)
        if index is None:
            return None
        self._keyframes, self._stored, self._is_counted = index.keyframes, index.stored, index.is_counted
        self._marks = bytearray(index.marks)
        return index.info

    def read(self, indices: Sequence[int]) -> Frames:
        """See `VideoReader.read`."""
        info = self.info()
        check_indices(indices, info)
        out = np.empty((len(indices), info.height, info.width, 3), np.uint8)
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            places.setdefault(index, []).append(place)
        for index, frame in self.decoded(sorted(places)):
            out[places[index]] = self.picture(frame)
        return out

    def frames(self, start: int = 0, stop: int | None = None) -> Iterator[Frame]:
        """See `VideoReader.frames`."""
        count = self.info().num_frames
        for _, frame in self.decoded(range(start, count if stop is None else min(stop, count))):
            yield self.picture(frame)

    def decoded(self, wanted: Sequence[int]) -> Iterator[tuple[int, av.VideoFrame]]:
        """Ascending frame indices in, each with the decoder's own frame, progressive, not yet upright or square, out.

        Seeks only where that beats decoding on.

        Raises:
            DataError: at the first frame that cannot be decoded, or that is of another size than the first.
        """
        decoding: Iterator[tuple[int, av.VideoFrame]] | None = None
        position = -1
        for index in wanted:
            if decoding is None or self._key_before(index) > position + _SEEK_FRAMES:
                decoding = self._decode_from(index)
            found = next((pair for pair in decoding if pair[0] >= index), None)
            if found is None or found[0] != index:
                raise DataError(f"{self._name} is damaged: frame {index} cannot be decoded")
            position = index
            self._check_frame(found[1])
            yield index, found[1]

    def is_corrupt(self, index: int) -> bool:
        """Of a frame that was decoded, whether it is damaged, or predicted from one that is."""
        return bool(self._marks[index] & _CORRUPT)

    def is_interlaced(self, index: int) -> bool:
        """Of a frame that was decoded, whether it is stored interlaced."""
        return bool(self._marks[index] & _INTERLACED)

    def _key_before(self, index: int) -> int:
        place = int(np.searchsorted(self._keyframes, index, side="right")) - 1
        return self._keyframes[place] if place >= 0 else 0

    def _decode_from(self, index: int) -> Iterator[tuple[int, av.VideoFrame]]:
        """Frames with their index, the first one at or before `index`."""
        info, start = self.info(), self._key_before(index)
        while True:
            decoding = progressive(self._decode(info, start))
            first = next(decoding, None)
            # A seek goes by decoding time, so it can land on a keyframe that is shown after the frame we want; and an
            # interlaced frame is made progressive with the one before it. In a short MPEG-PS it lands behind all.
            early = first is not None and (first[0] < index or (first[0] == index and not self.is_interlaced(index)))
            if early or start == 0:
                break
            start = self._key_before(start - 1)
        if first is not None:
            yield first
            yield from decoding

    def _decode(self, info: VideoInfo, key: int) -> Iterator[tuple[int, av.VideoFrame]]:
        at = {pts: index for index, pts in enumerate(info.pts)}
        try:
            container, stream = self._sought(info.pts[key] if key else min(info.pts[0], 0))
            broken = False
            for count, frame in enumerate(_frames(container, stream, whole=info.missing_frames > 0)):
                index = count if self._is_counted or frame.pts is None else at.get(frame.pts)
                broken = frame.is_corrupt or (broken and not frame.key_frame)
                if index is not None and index < info.num_frames:
                    broken = broken or bool(self._marks[index] & _HALF_THERE)
                    self._marks[index] |= _CORRUPT * broken | _INTERLACED * frame.interlaced_frame
                    yield index, frame
        except (av.error.FFmpegError, EOFError) as error:
            or_not = ", or in a format that the GPU cannot decode (decode=cpu can)" if self.decode == "nvdec" else ""
            raise DataError(f"{self._name} is damaged{or_not}: {error}") from error
        except IndexError as error:
            raise DataError(f"{self._name} {LATE_STREAM}") from error

    def _sought(self, pts: int) -> tuple[InputContainer, av.VideoStream]:
        """The container, about to give the keyframe at or before a time stamp; its start where it cannot be sought."""
        container = self._opened()
        try:
            container.seek(pts, stream=_film(container))
        except av.error.FFmpegError:  # a single picture, a raw stream
            self.close()
            container = self._opened()
        return container, _film(container)

    def picture(self, frame: av.VideoFrame) -> Frame:
        """A frame that was decoded, upright and in square pixels, (H, W, 3) RGB."""
        info = self.info()
        try:
            rgb = self._to_rgb.reformat(frame, format="rgb24", **self._size(frame), **_ONE_THREAD).to_ndarray()
            picture = np.rot90(rgb, info.rotation_deg // 90)
        except av.error.FFmpegError as error:
            raise DataError(f"{self._name} has a frame that cannot be made RGB: {error}") from error
        return np.ascontiguousarray(picture)

    def _size(self, frame: av.VideoFrame) -> dict[str, Any]:
        """What is said to the scaler: nothing where pixels are square."""
        info = self.info()
        if info.is_square:
            return {}
        width, height = (info.height, info.width) if info.rotation_deg % 180 else (info.width, info.height)
        return {"width": width, "height": height, "interpolation": "BICUBIC"}

    def _check_frame(self, frame: av.VideoFrame) -> None:
        if (frame.width, frame.height) != self._stored:
            raise DataError(
                f"{self._name} changes its frame size from {self._stored[0]}x{self._stored[1]} to "
                f"{frame.width}x{frame.height}; expected one size"
            )

    def _opened(self) -> InputContainer:
        """The container of this process: a file shared over a fork would be sought by both sides."""
        if self._container is not None and self._process == os.getpid():
            return self._container
        if isinstance(self._source, Path) and not self._source.is_file():
            raise UserError(f"there is no video file {self._source}")
        file = io.BytesIO(self._source) if isinstance(self._source, bytes) else f"file:{self._source.absolute()}"
        try:
            container = av.open(file, "r", options=OPTIONS, hwaccel=_accelerated(self.decode))
        except (av.error.FFmpegError, EOFError, ValueError, RuntimeError) as error:
            if self.decode == "nvdec":
                raise DataError(f"{self._name} cannot be decoded by the GPU (use decode=cpu): {error}") from error
            raise DataError(f"{self._name} cannot be opened as a video: {error}") from error
        if not container.streams.video:
            container.close()
            raise DataError(f"{self._name} has no video stream")
        stream = _film(container)
        if _is_cover(stream):
            container.close()
            raise DataError(f"{self._name} has no video stream, only cover art")
        if getattr(stream, "codec_context", None) is None:
            container.close()
            raise DataError(f"{self._name} holds video in an unknown codec")
        # One thread: curation and loaders run one process a core, and 720p H.264 was faster so (503 against 331 fps).
        stream.thread_count = 1
        vectors = {"flags2": "+export_mvs"} if self._vectors and self.decode == "cpu" else {}
        stream.codec_context.options = _DECODER_OPTIONS | vectors
        self._container, self._process = container, os.getpid()
        return container

    def _walk(self) -> VideoInfo:
        """Demultiplex once: time stamps, keyframes, and what is there of all that the container promises."""
        state, container = self._state(), self._opened()
        stream = _film(container)
        check_size(stream.codec_context.width, stream.codec_context.height, self._name)
        shown: list[Shown] = []
        packets = 0
        for packet in container.demux(stream):
            if packet.size:
                packets += 1
                if not packet.is_discard:
                    shown.append(Shown(packet.pts, packet.dts, packet.is_keyframe, packet.is_corrupt))
            if packets > MAX_FRAMES:
                raise DataError(f"{self._name} has more than {MAX_FRAMES:,} frames")
        promised = stream.frames - (packets - len(shown))
        half = bool(shown) and shown[-1].is_corrupt  # the file ends in the middle of it
        short = bool(promised) and len(shown) - half < promised
        there = without_gap(shown) if short else shown
        info = self._describe(there, promised - len(there) if short else 0)
        if state:
            index = PacketIndex(info, self._keyframes, self._stored, self._is_counted, bytes(self._marks))
            _LATEST[:] = [(state, index)]
        return info

    def _describe(self, shown: list[Shown], missing: int) -> VideoInfo:
        container, stream = self._sought(0)
        first = next(_frames(container, stream, whole=missing > 0), None)
        if first is None or not shown:
            cut = f"; the container declares {missing + len(shown):,}, so it is truncated" if missing else ""
            raise DataError(f"{self._name} has no frame that can be decoded{cut}")
        time_base = stream.time_base or Fraction(1, 90_000)
        fps = stream.average_rate or stream.guessed_rate or Fraction(25)
        turned = round(first.rotation / 90) % 4
        self._stored = first.width, first.height
        wide, high = square_size(*self._stored, stream.sample_aspect_ratio)
        check_size(wide, high, self._name)
        width, height = (high, wide) if turned % 2 else (wide, high)
        codec = stream.codec_context.codec.canonical_name  # its own name is the decoder's, such as libdav1d
        pts, self._keyframes = self._order(shown, fps, time_base)
        fps = _mean_rate(pts, fps, time_base)
        info = VideoInfo(
            len(pts), float(fps), width, height, codec, 0.0, turned * 90, time_base, pts, missing,
            is_square=(wide, high) == self._stored, is_interlaced=first.interlaced_frame,
        )  # fmt: skip
        half_there = {packet.pts for packet in shown if packet.is_corrupt} - {None}
        self._marks = bytearray(_HALF_THERE if stamp in half_there else 0 for stamp in pts)
        duration_s = float((info.end_pts(len(pts) - 1) - pts[0]) * time_base)
        return replace(info, duration_s=duration_s)

    def _order(self, shown: list[Shown], fps: Fraction, time_base: Fraction) -> tuple[tuple[int, ...], list[int]]:
        """The time stamps in order and the keyframes' indices; decodes where packets carry no time stamps (AVI)."""
        known = [(packet.pts, packet.is_keyframe) for packet in shown if packet.pts is not None]
        if len(known) == len(shown) and len({pts for pts, _ in known}) == len(known):
            known.sort()
            return tuple(pts for pts, _ in known), [index for index, (_, key) in enumerate(known) if key]
        container, stream = self._sought(0)
        seen = [frame.pts for frame in _frames(container, stream, whole=True)]
        stamps = [pts for pts in seen if pts is not None]
        if len(set(stamps)) == len(seen):
            return tuple(sorted(stamps)), [0]
        self._is_counted = True
        step = max(1, round(1 / (fps * time_base)))
        return tuple(index * step for index in range(len(seen))), [0]


def _frames(container: InputContainer, stream: av.VideoStream, *, whole: bool) -> Iterator[av.VideoFrame]:
    """What is decoded from here on; with `whole`, of whole packets alone: half of one would end it with an error."""
    for packet in container.demux(stream):
        if not (whole and packet.size and packet.is_corrupt):
            yield from packet.decode()


def _accelerated(decode: Decoding) -> HWAccel | None:
    """NVDEC or an error: FFmpeg would go on with the CPU in silence. Frames come back into memory, as NV12."""
    return HWAccel(device_type="cuda", allow_software_fallback=False) if decode == "nvdec" else None


def _film(container: InputContainer) -> av.VideoStream:
    """The first stream of pictures that is no cover, or the cover where there is nothing else."""
    return min(container.streams.video, key=_is_cover)


def _is_cover(stream: av.VideoStream) -> bool:
    """Music and phones' films carry a picture of one "frame" at 90,000 a second, often before the film itself."""
    return bool(stream.disposition & Disposition.attached_pic)


def _mean_rate(pts: Sequence[int], declared_fps: Fraction, time_base: Fraction) -> Fraction:
    """What the container tells, unless its time stamps say otherwise: Matroska tells one frame's usual length.

    A tick at either end is what rounding to the time base may cost.
    """
    if len(pts) < 2:
        return declared_fps
    ticks, expected = pts[-1] - pts[0], (len(pts) - 1) / (declared_fps * time_base)
    if abs(ticks - expected) <= 2 + expected / 100:
        return declared_fps
    return (len(pts) - 1) / (ticks * time_base)
