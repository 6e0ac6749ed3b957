"""Reads the packet order and the frames of a video through PyAV, which reads every format."""

import io
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import av.error
import numpy as np
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.stream import Disposition
from av.video.reformatter import VideoReformatter

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.media_types import Frame, Frames, Transfer
from nemo_vfm.data.video.codecs import NVDEC_CODECS, Decoding
from nemo_vfm.data.video.deinterlace import deinterlace
from nemo_vfm.data.video.joined_recordings import (
    FramePacket,
    Recordings,
    joints_of,
    on_one_clock,
    with_bytes_lost,
    without_gap,
)
from nemo_vfm.data.video.tone_map import rgb_of, transfer_of
from nemo_vfm.data.video.video_info import (
    MAX_FRAME_PX,
    MAX_FRAMES,
    VideoInfo,
    check_indices,
    check_size,
    holes_in,
    name_of,
)

# Playlists and concatenations name other files and addresses; opening one must not reach beyond the bytes given.
_FORMATS = (
    "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,ivf,obu,flv,ogg,asf,gif,png_pipe,jpeg_pipe,mjpeg,mxf,"
    "yuv4mpegpipe"
)
OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "file", "max_pixels": str(MAX_FRAME_PX)}
# Once more for the decoder itself: options given on opening do not reach it, and a picture can be larger than the
# header says (one of 16000x16000 in VP8 of 128x96 took 370 MB and a second before its size was seen).
_DECODER_OPTIONS = {"max_pixels": str(MAX_FRAME_PX)}
# PyAV looks a packet's stream up among those that were there on opening; MPEG-TS can get more on the way.
LATE_STREAM = "starts another stream midway, which cannot be read; cut or remux the file"
# Streams of broadcasting have no index. Sought by time, they begin one packet late, and anywhere where the clock is set
# back; sought by the byte at which a keyframe begins, they begin with it.
SOUGHT_BY_BYTE = ("mpegts", "mpeg")
# These keep no time of showing for H.264. FFmpeg then guesses one as if frames were stored in the order of showing.
_WITHOUT_STAMPS = ("avi", "asf", "mxf")
_CORRUPT, _INTERLACED, _HALF_THERE = 1, 2, 4
_HDR: dict[Transfer, int] = {"sdr": 0, "pq": 8, "hlg": 16}
_NOT_YCBCR = 14, 15  # ICtCp and IPT in ITU-T H.273, which FFmpeg's scaler would take for YCbCr
_NEARLY_SQUARE = Fraction(1, 200)  # encoders write 4095:4096 and the like where they mean 1:1
_MAX_ASPECT = 4  # more is a mistake of the header; anamorphic films have 2 at most
_SEEK_FRAMES = 4  # a seek costs about what decoding this many frames does (320x192 to 1280x720, H.264, 2026-11)


@dataclass(frozen=True, slots=True)
class PacketIndex:
    """What a walk over all packets of a file tells."""

    info: VideoInfo  #: see `VideoReader.info`
    keyframes: list[int]  #: their indices, ascending
    stored: tuple[int, int]  #: width and height of the decoder's frames
    is_counted: bool  #: time stamps come twice, or are missing: frames go by their number
    marks: bytes  #: of each frame, whether half of its packet is missing
    places: dict[int, int]  #: bytes at which keyframes begin, by their indices, where that is how they are sought
    recordings: Recordings  #: see `joined_recordings`


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
        self.stored = 0, 0  # width and height of the decoder's frames
        self._is_counted = False  # time stamps come twice, or are missing: frames go by their number
        self._marks = bytearray()  # of each frame that was decoded
        self._places: dict[int, int] = {}
        self._recordings = Recordings()
        # One for all frames, since a frame's own is made anew each time, and with threads of its own: a third of the
        # time of decoding to RGB at 320x192, and threads do not survive a fork.
        self._to_rgb = VideoReformatter()
        self._open()

    def __enter__(self) -> Self:
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
                self._info = self._recall_info() or self._walk()
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

    def _recall_info(self) -> VideoInfo | None:
        state = self._state()
        index = next((index for known, index in _LATEST if state and known == state), None)
        if index is None:
            return None
        self._keyframes, self.stored, self._is_counted = index.keyframes, index.stored, index.is_counted
        self._marks, self._places, self._recordings = bytearray(index.marks), index.places, index.recordings
        return index.info

    def read(self, indices: Sequence[int]) -> Frames:
        """See `VideoReader.read`."""
        info = self.info()
        check_indices(indices, info)
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            places.setdefault(index, []).append(place)
        out = np.empty((len(indices), info.height, info.width, 3), np.uint8)
        for number, (index, frame) in enumerate(self._of_one_size(sorted(places))):
            picture = self.picture(frame)
            if not number and picture.shape != out.shape[1:]:
                out = np.empty((len(indices), *picture.shape), np.uint8)
            out[places[index]] = picture
        return out

    def frames(self, start: int = 0, stop: int | None = None) -> Iterator[Frame]:
        """See `VideoReader.frames`."""
        count = self.info().num_frames
        for _, frame in self._of_one_size(range(start, count if stop is None else min(stop, count))):
            yield self.picture(frame)

    def _of_one_size(self, wanted: Sequence[int]) -> Iterator[tuple[int, av.VideoFrame]]:
        size: tuple[int, int] | None = None
        for index, frame in self.decode_at(wanted):
            found = frame.width, frame.height
            if size is not None and size != found:
                raise self.new_size(size, index, found)
            size = found
            yield index, frame

    def new_size(self, size: tuple[int, int], index: int, found: tuple[int, int]) -> DataError:
        """That a frame is of another size than those before it."""
        return DataError(
            f"{self._name} changes its frame size from {size[0]}x{size[1]} to {found[0]}x{found[1]} at frame {index}; "
            "expected one size (curation cuts there)"
        )

    def decode_at(self, wanted: Sequence[int], *, past_losses: bool = False) -> Iterator[tuple[int, av.VideoFrame]]:
        """Ascending frame indices in, each with the decoder's own frame out: progressive; not upright, square or SDR.

        Seeks only where that beats decoding on.

        Args:
            wanted: the indices.
            past_losses: in a recording of a broadcast, the next frame stands in for one that was lost on the way, which
                is corrupt then: a lost packet would else cost the rest of the film (HEVC).

        Raises:
            DataError: at the first frame that cannot be decoded.
        """
        decoding: Iterator[tuple[int, av.VideoFrame]] | None = None
        position = -1
        for index in wanted:
            if decoding is None or self._key_before(index) > position + _SEEK_FRAMES:
                decoding = self._decode_from(index)
            found = next((pair for pair in decoding if pair[0] >= index), None)
            if found is not None and found[0] > index and past_losses and self._places:
                self._marks[index] |= _CORRUPT
                decoding = chain([found], decoding)
            elif found is None or found[0] != index:
                raise DataError(f"{self._name} is damaged: frame {index} cannot be decoded")
            position = index
            yield index, found[1]

    def is_corrupt(self, index: int) -> bool:
        """Of a frame that was decoded, whether it is damaged, or predicted from one that is."""
        return bool(self._marks[index] & _CORRUPT)

    def is_interlaced(self, index: int) -> bool:
        """Of a frame that was decoded, whether it is stored interlaced."""
        return bool(self._marks[index] & _INTERLACED)

    def transfer(self, index: int) -> Transfer:
        """Of a frame that was decoded, what its values mean as it is stored."""
        return next((transfer for transfer, mark in _HDR.items() if self._marks[index] & mark), "sdr")

    def recordings(self) -> Recordings:
        """The recordings that the file holds."""
        self.info()
        return self._recordings

    def place_before(self, time_s: float) -> int:
        """The byte at which the last keyframe begins that is shown by a time, of a file that is sought by bytes."""
        info = self.info()
        return self._places[max((key for key in self._places if info.pts[key] * info.time_base <= time_s), default=0)]

    def _key_before(self, index: int) -> int:
        place = bisect_right(self._keyframes, index)  # per frame: numpy would copy the list each time
        return self._keyframes[place - 1] if place else 0

    def _decode_from(self, index: int) -> Iterator[tuple[int, av.VideoFrame]]:
        """Frames with their index, the first one at or before `index`."""
        info, start = self.info(), self._key_before(index)
        while True:
            decoding = deinterlace(self._decode(info, start))
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
            begin, is_cut_short = (
                info.pts[key] if key else min(info.pts[0], 0),
                info.missing_frames > info.before_keyframe,
            )
            broken, expected = False, None
            for count, frame in enumerate(self._frames(key, begin, whole=is_cut_short)):
                index = count if self._is_counted or frame.pts is None else at.get(frame.pts)
                is_late = None not in (index, expected) and index != expected  # what it refers to may be lost
                broken = frame.is_corrupt or ((broken or is_late) and not frame.key_frame)
                if index is not None and index < info.num_frames:
                    expected = index + 1
                    broken = broken or bool(self._marks[index] & _HALF_THERE)
                    self._marks[index] |= _CORRUPT * broken | _INTERLACED * frame.interlaced_frame
                    self._marks[index] |= _HDR[transfer_of(frame.color_trc)]
                    yield index, frame
        except (av.error.FFmpegError, EOFError) as error:
            or_not = ", or in a format that the GPU cannot decode (decode=cpu can)" if self.decode == "nvdec" else ""
            raise DataError(f"{self._name} is damaged{or_not}: {error}") from error
        except IndexError as error:
            raise DataError(f"{self._name} {LATE_STREAM}") from error

    def _frames(self, key: int = 0, pts: int = 0, *, whole: bool) -> Iterator[av.VideoFrame]:
        """What is decoded from a keyframe on, or from one before it; from the start where nothing can be sought.

        With `whole`, of whole packets alone: half of one would end it with an error.
        """
        container = self._open()
        try:
            if self._places:
                container.seek(self._places[key], unsupported_byte_offset=True)
            else:
                container.seek(pts, stream=film_of(container))
        except av.error.FFmpegError:  # a single picture, a raw stream
            self.close()
            container = self._open()
        stream, place = film_of(container), self._places.get(key, 0)
        part, is_there = self._recordings.number(place) if self._places else 0, not place
        shift: int | None = 0
        for packet in container.demux(stream):
            # At the byte of a keyframe another frame may end: pieces of a program stream hold several.
            is_there = is_there or packet.is_keyframe
            if packet.size:
                if not is_there:
                    continue
                if self._places:
                    place = place if packet.pos is None else packet.pos
                    before, part = part, self._recordings.number(place)
                    if part != before:  # another recording: what is left of the one before comes first
                        for frame in stream.decode(None):
                            frame.time_base = stream.time_base or Fraction(1, 90_000)
                            yield frame
                        stream.codec_context.flush_buffers()
                    shift = self._recordings.shifts[part]
                if shift is None or (whole and packet.is_corrupt):
                    continue
                if shift and packet.pts is not None:
                    packet.pts = packet.dts = packet.pts + shift
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                if not self._places:
                    raise
                continue  # lost on the way: a broadcast goes on
            yield from frames

    def picture(self, frame: av.VideoFrame) -> Frame:
        """A frame that was decoded, upright, in square pixels and SDR, (H, W, 3) RGB."""
        info, scaled = self.info(), dict[str, Any]()
        if not info.is_square:
            width, height = self.shown_size(frame.width, frame.height)
            scaled = {"width": width, "height": height, "interpolation": "BICUBIC"}
        try:
            picture = np.rot90(rgb_of(frame, self._to_rgb, **scaled), info.rotation_deg // 90)
        except av.error.FFmpegError as error:
            raise DataError(f"{self._name} has a frame that cannot be converted to RGB: {error}") from error
        return np.ascontiguousarray(picture)

    def shown_size(self, width: int, height: int) -> tuple[int, int]:
        """The size in square pixels of a frame that is stored in this size, before it is turned upright."""
        return _square_size(width, height, film_of(self._open()).sample_aspect_ratio)

    def _open(self) -> InputContainer:
        """The container of this process: a file shared over a fork would be sought by both sides."""
        if self._container is not None and self._process == os.getpid():
            return self._container
        if isinstance(self._source, Path) and not self._source.is_file():
            raise UserError(f"there is no video file {self._source}")
        file = io.BytesIO(self._source) if isinstance(self._source, bytes) else f"file:{self._source.absolute()}"
        try:
            container = av.open(file, "r", options=OPTIONS, hwaccel=_hw_accel(self.decode))
        except (av.error.FFmpegError, EOFError, ValueError, RuntimeError) as error:
            if self.decode == "nvdec":
                raise DataError(f"{self._name} cannot be decoded by the GPU (use decode=cpu): {error}") from error
            raise DataError(f"{self._name} cannot be opened as a video: {error}") from error
        if not container.streams.video:
            container.close()
            raise DataError(f"{self._name} has no video stream")
        stream = film_of(container)
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
        state, container = self._state(), self._open()
        stream = film_of(container)
        check_size(stream.codec_context.width, stream.codec_context.height, self._name)
        self._places = {0: 0} if container.format.name in SOUGHT_BY_BYTE else {}
        shown: list[FramePacket] = []
        packets = place = 0
        for packet in container.demux(stream):
            if packet.size:
                packets += 1
                place = place if packet.pos is None else packet.pos
                if not packet.is_discard:
                    shown.append(FramePacket(packet.pts, packet.dts, packet.is_keyframe, packet.is_corrupt, place))
            if packets > MAX_FRAMES:
                raise DataError(f"{self._name} has more than {MAX_FRAMES:,} frames")
        promised = stream.frames - (packets - len(shown))
        half = bool(shown) and shown[-1].is_corrupt  # the file ends in the middle of it
        short = bool(promised) and len(shown) - half < promised
        there = without_gap(shown) if short else shown
        info = self._describe(there, promised - len(there) if short else 0)
        if state:
            index = PacketIndex(
                info, self._keyframes, self.stored, self._is_counted, bytes(self._marks), self._places, self._recordings
            )
            _LATEST[:] = [(state, index)]
        return info

    def _describe(self, shown: list[FramePacket], missing: int) -> VideoInfo:
        there = shown
        if self._places:
            joints = joints_of(shown)
            there, self._recordings = on_one_clock(with_bytes_lost(shown, joints), joints)
        first = next(self._frames(whole=missing > 0), None)
        if first is None or not shown:
            cut = f"; the container declares {missing + len(shown):,}, so it is truncated" if missing else ""
            raise DataError(f"{self._name} has no frame that can be decoded{cut}")
        if first.colorspace in _NOT_YCBCR:
            raise DataError(f"{self._name} is HDR in ICtCp or IPT, which cannot be read; convert it to YCbCr first")
        there = _from_first(there, first)
        stream = film_of(self._open())
        time_base = stream.time_base or Fraction(1, 90_000)
        fps = stream.average_rate or stream.guessed_rate or Fraction(25)
        turned = round(first.rotation / 90) % 4
        self.stored = first.width, first.height
        wide, high = _square_size(*self.stored, stream.sample_aspect_ratio)
        check_size(wide, high, self._name)
        width, height = (high, wide) if turned % 2 else (wide, high)
        codec = stream.codec_context.codec.canonical_name  # its own name is the decoder's, such as libdav1d
        pts, self._keyframes = self._order(there, fps, time_base)
        before_keyframe = max(0, len(shown) - max(len(there), len(pts)))
        holes = holes_in(pts, time_base)
        fps = _mean_rate(pts, holes, fps, time_base)
        info = VideoInfo(
            len(pts), float(fps), width, height, codec, 0.0, turned * 90, time_base, pts, missing + before_keyframe,
            is_square=(wide, high) == self.stored, is_interlaced=first.interlaced_frame,
            before_keyframe=before_keyframe, holes=holes,
            transfer=transfer_of(first.color_trc),
        )  # fmt: skip
        half_there = {packet.pts for packet in there if packet.is_corrupt} - {None}
        self._marks = bytearray(_HALF_THERE if stamp in half_there else 0 for stamp in pts)
        duration_s = float((info.end_pts(len(pts) - 1) - pts[0]) * time_base)
        return replace(info, duration_s=duration_s)

    def _order(self, shown: list[FramePacket], fps: Fraction, time_base: Fraction) -> tuple[tuple[int, ...], list[int]]:
        """The time stamps in order and the keyframes' indices; decodes where packets carry no time stamps (AVI)."""
        known = {packet.pts: packet for packet in shown if packet.pts is not None}
        pts, container = tuple(sorted(known)), self._open()
        reorders = container.format.name in _WITHOUT_STAMPS and film_of(container).codec_context.has_b_frames
        is_guessed = reorders and tuple(known) == pts
        if len(known) == len(shown) and not is_guessed:
            keyframes = [index for index, stamp in enumerate(pts) if known[stamp].is_keyframe]
            if self._places:
                self._places |= {index: known[pts[index]].place for index in keyframes if index}
            return pts, keyframes
        # Half a packet in a broadcast's stream may be a whole one (see `with_bytes_lost`).
        seen = [frame.pts for frame in self._frames(whole=not self._places)]
        stamps = [pts for pts in seen if pts is not None]
        if len(stamps) == len(seen) and all(before < after for before, after in pairwise(stamps)):
            return tuple(stamps), [0]
        self._is_counted = True
        step = max(1, round(1 / (fps * time_base)))
        return tuple(index * step for index in range(len(seen))), [0]


def _hw_accel(decode: Decoding) -> HWAccel | None:
    """NVDEC or an error: FFmpeg would go on with the CPU in silence. Frames come back into memory, as NV12."""
    return HWAccel(device_type="cuda", allow_software_fallback=False) if decode == "nvdec" else None


def film_of(container: InputContainer) -> av.VideoStream:
    """The stream of pictures that is taken: no cover where there is another, a default one before others, the largest.

    A default one less than half as wide is a preview: many writers make their first stream the default.
    """
    covers = [stream for stream in container.streams.video if _is_cover(stream)]
    films = [stream for stream in container.streams.video if stream not in covers] or covers
    large = [film for film in films if 4 * _area(film) >= max(map(_area, films))]
    return min(large, key=lambda film: (not film.disposition & Disposition.default, -_area(film)))


def _area(stream: av.VideoStream) -> int:
    context = getattr(stream, "codec_context", None)
    return context.width * context.height if context is not None else 0


def _is_cover(stream: av.VideoStream) -> bool:
    """Music and phones' films carry a picture of one "frame" at 90,000 a second, often before the film itself."""
    return bool(stream.disposition & (Disposition.attached_pic | Disposition.timed_thumbnails))


def _square_size(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """Width and height, one of them larger than stored, so that nothing is lost; even, as 4:2:0 wants it.

    Args:
        width: as it is stored.
        height: the same.
        aspect: a pixel's width over its height; None or 0 where nothing is said.
    """
    ratio = Fraction(aspect) if aspect else Fraction(1)
    if not Fraction(1, _MAX_ASPECT) <= ratio <= _MAX_ASPECT or abs(ratio - 1) <= _NEARLY_SQUARE:
        return width, height
    return (2 * round(width * ratio / 2), height) if ratio > 1 else (width, 2 * round(height / ratio / 2))


def _mean_rate(pts: Sequence[int], holes: Sequence[int], declared_fps: Fraction, time_base: Fraction) -> Fraction:
    """What the container tells, unless its time stamps say otherwise: Matroska tells one frame's usual length.

    Containers may count holes in, and no hole is a frame's length.
    A tick at either end is what rounding to the time base may cost.
    """
    if len(pts) < 2:
        return declared_fps
    steps, ticks = len(pts) - 1 - len(holes), pts[-1] - pts[0] - sum(pts[hole] - pts[hole - 1] for hole in holes)
    expected = steps / (declared_fps * time_base)
    if abs(ticks - expected) <= 2 + expected / 100:
        return declared_fps
    return steps / (ticks * time_base)


def _from_first(shown: list[FramePacket], first: av.VideoFrame) -> list[FramePacket]:
    """What is shown from the first frame on that can be decoded: a recording may begin between keyframes.

    Some decoders (MPEG-4) guess what the frames before a keyframe refer to.
    """
    stamps = {packet.pts for packet in shown} - {None}
    if first.pts is None or len(stamps) < len(shown):
        return shown
    keyframe = next((packet.pts for packet in shown if packet.is_keyframe), None)
    begin = first.pts if first.key_frame or keyframe is None else max(first.pts, keyframe)
    return [packet for packet in shown if packet.pts is not None and packet.pts >= begin]
