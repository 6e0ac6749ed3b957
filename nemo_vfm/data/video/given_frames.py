"""Reads the frames that a video begins with: a picture, or the last frames of a clip that it goes on from.

Shape letters: T frames, H height, W width.
"""

from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES, Frames
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import resize_and_crop
from nemo_vfm.data.video.image_file import open_image


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
