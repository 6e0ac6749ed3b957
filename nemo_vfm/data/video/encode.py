"""Encodes frames as one mp4 of exactly these frames; the same frames give the same bytes.

Shape letters: T frames, H height, W width, C colour channels.
"""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import IO

import av
import av.video.frame
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.media_types import Frame
from nemo_vfm.data.video.audio import ClipAudio
from nemo_vfm.data.video.codecs import ENCODERS, EncoderName, VideoEncoder, encoder_of, open_encoder
from nemo_vfm.data.video.tone_map import rgb_of, transfer_of

_NO_MATRIX, _BT709, _LIMITED_RANGE = 0, 1, 1
FrameToEncode = Frame | av.VideoFrame
How = tuple[VideoEncoder, int, str]  # with its crf and preset


def exact_fps(fps: Fraction | float) -> Fraction:
    """The frame rate as a fraction; 23.976 becomes 24000/1001."""
    if not 0 < fps <= 1000:
        raise ValueError(f"the frame rate must be above 0 and at most 1000 frames per second, got {float(fps)}")
    if isinstance(fps, Fraction):
        return fps.limit_denominator(60_000)
    ntsc = Fraction(round(fps * 1.001) * 1000, 1001)
    return ntsc if fps != round(fps) and abs(float(ntsc) - fps) < 1e-3 else Fraction(fps).limit_denominator(1000)


def encode_mp4(
    target: Path | IO[bytes],
    frames_THWC: Iterable[FrameToEncode],
    fps: Fraction | float,
    *,
    crf: int = 18,
    preset: str = "medium",
    encoder: EncoderName = "x264",
    audio: ClipAudio | None = None,
) -> int:
    """Write H.264 4:2:0 that plays everywhere, in BT.709 where it is made of RGB; a path appears only when it is whole.

    Args:
        target: a path, or a seekable binary file such as BytesIO.
        frames_THWC: an array, or any iterable of (H, W, 3) uint8 RGB frames of one size. 4:2:0 has no odd sizes:
            an odd width or height gets one more column or row, a copy of the last. A decoder's own frames of even
            sizes go in as they are and keep their colour space, except for HDR, RGB, grey and palettes.
        fps: frames per second.
        crf: 0 (largest, best) to 51; AV1 and VP9 go to 63.
        preset: x264's word for its trade of time for size; other encoders get their nearest.
        encoder: see `codecs.ENCODERS`.
        audio: sound whose packets go beside the pictures, where it has any.

    Returns:
        How many frames were written.

    Raises:
        ValueError: no frame, a frame of another size or dtype, or an impossible fps or crf.
    """
    if not 0 <= crf <= ENCODERS[encoder].quality[1]:
        raise ValueError(f"crf must be between 0 and {ENCODERS[encoder].quality[1]}, got {crf}")
    how = encoder_of(encoder), crf, preset
    if isinstance(target, Path):
        with atomic_path(target) as temporary, temporary.open("wb") as file:
            return _encode(file, frames_THWC, exact_fps(fps), how, audio)
    return _encode(target, frames_THWC, exact_fps(fps), how, audio)


def _encode(file: IO[bytes], frames: Iterable[FrameToEncode], fps: Fraction, how: How, audio: ClipAudio | None) -> int:
    # bitexact leaves the muxer's version and date out of the file.
    container = av.open(file, "w", format="mp4", options={"fflags": "+bitexact"})
    with container:
        stream, shape, count, scaler = None, (0, 0), 0, VideoReformatter()
        for count, picture in enumerate(frames, 1):
            frame = _to_encodable(picture, scaler)
            if stream is None:
                shape = frame.height, frame.width
                stream = _stream(container, frame, fps, how)
                if audio is not None and audio.stream is not None:
                    # All the sound at once: the muxer lays it between the pictures by time.
                    sound = container.add_stream_from_template(audio.stream)
                    for packet in audio.packets:
                        packet.stream = sound
                        container.mux(packet)
            if (frame.height, frame.width) != shape:
                raise ValueError(f"frame {count - 1} is {frame.width}x{frame.height}, expected {shape[1]}x{shape[0]}")
            if frame.format.name != "yuv420p":
                frame = frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = count - 1, 1 / fps
            # A picture type left over from a decoder makes x264 write keyframes where it stands (604 of 900 once).
            frame.pict_type = av.video.frame.PictureType.NONE
            container.mux(stream.encode(frame))
        if stream is None:
            raise ValueError("expected at least one frame to encode, got none")
        container.mux(stream.encode(None))
    return count


def _stream(container: av.container.OutputContainer, frame: av.VideoFrame, fps: Fraction, how: How) -> av.VideoStream:
    if frame.width % 2 or frame.height % 2:
        raise ValueError(f"a frame of {frame.width}x{frame.height} cannot be stored as 4:2:0, which needs even sizes")
    encoder, crf, preset = how
    stream = container.add_stream(encoder.codec, rate=fps, options=encoder.options(crf, preset))
    assert isinstance(stream, av.VideoStream)
    stream.height, stream.width = frame.height, frame.width
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.time_base = 1 / fps
    context.colorspace, context.color_range = frame.colorspace, frame.color_range
    context.color_primaries, context.color_trc = frame.color_primaries, frame.color_trc
    # x264 gives other bytes with another number of threads: one, so that every machine writes the same file.
    context.thread_count = 1
    open_encoder(stream)
    return stream


def _to_encodable(picture: FrameToEncode, scaler: VideoReformatter) -> av.VideoFrame:
    """A frame whose colour space holds for 8 bits and 4:2:0: AV1 and VP9 refuse such frames that say they are RGB."""
    if not isinstance(picture, av.VideoFrame):
        return _from_rgb(picture)
    form = picture.format
    is_yuv = len(form.components) >= 3 and not form.is_rgb and not form.has_palette
    if is_yuv and picture.colorspace != _NO_MATRIX and transfer_of(picture.color_trc) == "sdr":
        return picture
    return _from_rgb(rgb_of(picture, scaler))


def _from_rgb(picture: NDArray[np.uint8]) -> av.VideoFrame:
    """RGB as 4:2:0 in BT.709, of even sizes."""
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape or picture.dtype != np.uint8:
        raise ValueError(f"a frame must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}")
    height, width = picture.shape[:2]
    if height % 2 or width % 2:
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
    frame.colorspace, frame.color_range = _BT709, _LIMITED_RANGE
    frame.color_primaries, frame.color_trc = _BT709, _BT709
    return frame
