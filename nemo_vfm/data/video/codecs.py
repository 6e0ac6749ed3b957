"""Finds out whether a codec works on this machine by using it, and says what its absence costs."""

import io
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

import av
import av.error
import cv2
import numpy as np

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import beginning
from nemo_vfm.data.video import realtime_guard

# Else SVT-AV1 prints its settings, past our log, for every film.
os.environ.setdefault("SVT_LOG", "1")

EncoderName = Literal["x264", "nvenc", "svtav1", "vp9"]
Decoding = Literal["cpu", "nvdec"]
_AVX_512F = 13  # OpenCV's number of it, for which it has no name in Python
#: What FFmpeg's usual decoders pass on to NVDEC. AV1 is not among it: dav1d, which reads it here, has no such way.
NVDEC_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "mpeg2video"})


@dataclass(frozen=True, slots=True)
class VideoEncoder:
    """One way to make an mp4."""

    codec: str  #: FFmpeg's name
    quality: tuple[str, int]  #: FFmpeg's name of the option that takes crf, and its largest value
    preset: str | None  #: FFmpeg's name of the option for speed; None where it has none that we set
    presets: Mapping[str, str]  #: our words for speed, which are x264's -> its own
    more: Mapping[str, str]
    has_vectors: bool  #: whether a decoder of its films gives motion vectors

    def options(self, crf: int, preset: str) -> dict[str, str]:
        """What is given to FFmpeg."""
        speed = {self.preset: self.presets.get(preset, preset)} if self.preset is not None else {}
        # With x264's AVX-512 code 60 encodings of the same 23 frames were 18 different files; without macroblock trees
        # or with AVX2, one. AVX2 code gives the bytes that it gives on every x86 processor since SSE 4.2, as quickly.
        is_unsteady = self.codec == "libx264" and cv2.checkHardwareSupport(_AVX_512F)
        steady = {"x264-params": "asm=AVX2,FMA3,BMI1,BMI2,LZCNT"} if is_unsteady else {}
        return {self.quality[0]: str(crf), **speed, **self.more, **steady}


_X264 = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
ENCODERS: Mapping[EncoderName, VideoEncoder] = {
    "x264": VideoEncoder("libx264", ("crf", 51), "preset", {}, {}, True),
    "nvenc": VideoEncoder(
        "h264_nvenc", ("qp", 51), "preset", dict(zip(_X264, ("p1", "p1", "p2", "p3", "p3", "p4", "p5", "p6", "p7"),
                                                   strict=True)), {"rc": "constqp"}, True,
    ),
    "svtav1": VideoEncoder(
        "libsvtav1", ("crf", 63), "preset", {word: str(10 - place) for place, word in enumerate(_X264)},
        {"svtav1-params": "lp=1"}, False,
    ),
    "vp9": VideoEncoder(
        "libvpx-vp9", ("crf", 63), "cpu-used", {word: str(8 - place) for place, word in enumerate(_X264)},
        {"b:v": "0", "deadline": "good", "row-mt": "0"}, False,
    ),
}  # fmt: skip
PRESETS = _X264

#: What is lost where one does not work.
COSTS = {
    "nvenc": "clips are encoded by the CPU, not the GPU",
    "x264": "without a GPU, H.264 cannot be written: use encoder=svtav1 or vp9, whose clips carry no motion vectors",
    "nvdec": "videos are decoded by the CPU, not the GPU",
}


@cache
def why_not(name: EncoderName) -> str | None:
    """Why an encoder cannot be used here, by encoding four frames with it; None where it can."""
    try:
        _four_frames(name)
    except (av.error.FFmpegError, ValueError, OSError) as error:
        return beginning(error) or type(error).__name__
    return None


def _four_frames(name: EncoderName) -> io.BytesIO:
    """An mp4 by an encoder, large enough for GPUs."""
    file, encoder = io.BytesIO(), ENCODERS[name]
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(encoder.codec, rate=Fraction(24), options=encoder.options(30, "veryfast"))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 256, 256, "yuv420p"
        open_encoder(stream)
        for number in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((256, 256, 3), 40 * number, np.uint8), format="rgb24")
            frame = frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 24)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    file.seek(0)
    return file


def open_encoder(stream: av.VideoStream) -> None:
    """Begin to encode with all that was set; the process stays scheduled as it was, which SVT-AV1 would change."""
    with realtime_guard.drop_realtime_priority() if stream.codec_context.name == "libsvtav1" else nullcontext():
        stream.codec_context.open(strict=False)


def encoder_of(name: EncoderName) -> VideoEncoder:
    """The encoder, if it works here. UserError if it does not; the text names those that do."""
    reason = why_not(name)
    if reason is None:
        return ENCODERS[name]
    others = [other for other in ENCODERS if other != name and why_not(other) is None]
    raise UserError(f"the encoder {name} does not work here: {reason}. Set encoder to one of {', '.join(others)}")


def check_decoding(where: Decoding) -> None:
    """Refuse what does not work here. UserError if nvdec is asked for, and no frame can be decoded with it."""
    if where == "nvdec" and (reason := nvdec_why_not()) is not None:
        raise UserError(f"NVDEC does not work here: {reason}. Set decode to cpu: {COSTS['nvdec']}")


@cache
def nvdec_why_not() -> str | None:
    """Why videos cannot be decoded by a GPU here; None where they can."""
    from av.codec.hwaccel import HWAccel, hwdevices_available

    if "cuda" not in hwdevices_available():
        return "this FFmpeg was built without it"
    try:
        acceleration = HWAccel(device_type="cuda", allow_software_fallback=False)
        with av.open(_four_frames("x264"), "r", hwaccel=acceleration) as container:
            next(container.decode(video=0))
    except (av.error.FFmpegError, RuntimeError, OSError, StopIteration) as error:
        return beginning(error) or type(error).__name__
    return None
