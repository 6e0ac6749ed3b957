"""Turns clips and pictures into frames of one size: sampled in time, resized, cropped.

Shape letters: T frames, H height, W width, C colour channels.
"""

from functools import cache
from pathlib import Path

import cv2
import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES, Decoder, Frames
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.image_file import open_image, rgb_pixels
from nemo_vfm.data.video.video_info import check_size

_PNG = b"\x89PNG\r\n\x1a\n"


def frame_indices(num_frames: int, fps: float, bucket: Bucket) -> list[int]:
    """The frames of a clip that a bucket takes: evenly spaced in time, from the middle of the clip."""
    return window_indices(num_frames, fps, bucket, max_windows=1)[0]


def window_indices(num_frames: int, fps: float, bucket: Bucket, max_windows: int) -> list[list[int]]:
    """The frames of each window: up to `max_windows`, spread from the first to the last frame of the clip.

    A single window lies in the middle. Windows may overlap but no two are the same.

    Raises:
        DataError: the clip is too short for one.
    """
    needed, stride = bucket.frames_needed(fps), bucket.stride(fps)
    slack = num_frames - needed
    if slack < 0:
        raise DataError(
            f"the clip has {num_frames} frames at {fps:g} fps, {bucket.num_frames} at "
            f"{bucket.fps or fps:g} fps need {needed}"
        )
    steps = max(1, max_windows - 1)
    starts = [slack // 2] if max_windows == 1 else sorted({step * slack // steps for step in range(max_windows)})
    offsets = [min(needed - 1, round(step * stride)) for step in range(bucket.num_frames)]
    return [[start + offset for offset in offsets] for start in starts]


def resize_and_crop(frames_THWC: Frames, width: int, height: int) -> Frames:
    """Scale until the frame covers width by height, aspect ratio kept, then cut the middle out."""
    source_height, source_width = frames_THWC.shape[1:3]
    scale = max(width / source_width, height / source_height)
    size = max(width, round(source_width * scale)), max(height, round(source_height * scale))
    if size != (source_width, source_height):
        # Area means when shrinking: a cubic would alias fine texture into flicker.
        way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        frames_THWC = np.stack([cv2.resize(frame, size, interpolation=way) for frame in frames_THWC]).astype(
            np.uint8, copy=False
        )
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.ascontiguousarray(frames_THWC[:, top : top + height, left : left + width])


def video_to_bucket(source: Path | bytes, bucket: Bucket, decoder: Decoder = "auto") -> tuple[Frames, float]:
    """A clip's frames in a bucket's shape, (T, H, W, 3), and their rate in frames per second.

    Of a clip with holes in its time stamps they are of the longest part without one.
    """
    with open_video(source, decoder) as reader:
        info = reader.info()
        first, stop = info.longest_part()
        frames_THWC = reader.read([first + index for index in frame_indices(stop - first, info.fps, bucket)])
    fps = info.fps / bucket.stride(info.fps)
    return resize_and_crop(frames_THWC, bucket.width, bucket.height), fps


def image_to_bucket(data: bytes, bucket: Bucket) -> tuple[Frames, float]:
    """A PNG's or JPEG's picture in a bucket's shape, (1, H, W, 3), and the bucket's rate, or 1.

    Raises:
        DataError: the picture is damaged, too large, or of another format.
    """
    return resize_and_crop(decode_image(data)[None], bucket.width, bucket.height), bucket.fps or 1.0


def decode_image(data: bytes) -> Frames:
    """(H, W, 3) RGB of a PNG or JPEG, turned upright by its Exif tag, HDR tone-mapped."""
    check_size(*image_size(data), "a picture")
    try:
        picture = rgb_pixels(data)
    except cv2.error as error:
        raise DataError(f"an image of {len(data):,} bytes is damaged: {error}") from error
    if picture is None:
        raise DataError(f"an image of {len(data):,} bytes is damaged")
    return picture


def image_size(data: bytes) -> tuple[int, int]:
    """(width, height), turned upright, without decoding, so that a bomb is refused before it is unpacked.

    Raises:
        DataError: neither PNG nor JPEG, or the header is damaged.
    """
    if data[:8] == _PNG and len(data) >= 24:
        stored = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        position, tags = len(_PNG), b""  # the chunk of Exif tags may stand behind the picture
        while position + 12 <= len(data) and not tags:
            end = position + 12 + int.from_bytes(data[position : position + 4], "big")
            tags = data[position:end] if data[position + 4 : position + 8] == b"eXIf" else b""
            position = end
        return _upright(stored, *_tiny_file(".png", 33), tags)
    if data[:2] == b"\xff\xd8":
        position, exif = 2, list[bytes]()
        while position + 9 <= len(data) and data[position] == 0xFF:
            marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
                height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
                stored = int.from_bytes(width, "big"), int.from_bytes(height, "big")
                return _upright(stored, *_tiny_file(".jpg", 2), b"".join(exif))
            if marker == 0xE1:
                exif.append(data[position : position + 2 + length])
            position += 1 if marker == 0xFF else 2 + length
    raise DataError(f"an image of {len(data):,} bytes is neither a complete PNG nor a complete JPEG")


def _upright(stored: tuple[int, int], before: bytes, after: bytes, exif: bytes) -> tuple[int, int]:
    """The size, its sides exchanged where the decoder turns a picture of 2x1 pixels with these tags on its side."""
    picture = cv2.imdecode(np.frombuffer(before + exif + after, np.uint8), cv2.IMREAD_COLOR) if exif else None
    return stored[::-1] if picture is not None and picture.shape[0] > picture.shape[1] else stored


@cache
def _tiny_file(suffix: str, split: int) -> tuple[bytes, bytes]:
    """A file of 2x1 pixels in two parts, between which tags may stand."""
    data = cv2.imencode(suffix, np.zeros((1, 2, 3), np.uint8))[1].tobytes()
    return data[:split], data[split:]


def given_frames(path: Path, count: PixelFrames, *, width: int, height: int) -> Frames:
    """Frames of a size, (T, H, W, 3): scaled until they cover it, the middle cut out.

    Raises:
        UserError: there is no such file, or it has fewer frames.
        DataError: it is damaged.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}, from which a prompt takes its first frames")
    after = ""
    if path.suffix.lower() in IMAGE_SUFFIXES:
        try:
            frames = open_image(path).picture_HWC[None]
        except DataError as error:
            raise DataError(f"{path} {error}") from error
    else:
        with open_video(path) as reader:
            first, stop = reader.info().parts()[-1]
            after = " after the last gap in its timestamps" if first else ""
            frames = reader.read(range(max(first, stop - count.count), stop))
    if len(frames) < count.count:
        raise UserError(f"{path} has {len(frames)} frames{after}, but {count} are needed; lower given_frames, or use "
                        f"a longer clip")  # fmt: skip
    return resize_and_crop(frames, width, height)
