"""Cuts a clip into training windows, as pixels of its bucket's shape."""

from collections.abc import Iterator

from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import image_to_bucket, resize_and_crop, window_indices


def training_windows(
    media: bytes, *, is_image: bool, bucket: Bucket, max_windows: int
) -> Iterator[tuple[Frames, float]]:
    """Each window's frames (T, H, W, C) and its frames per second.

    Raises:
        DataError: the clip is damaged or too short.
    """
    if is_image:
        yield image_to_bucket(media, bucket)
        return
    with open_video(media) as reader:
        info = reader.info()
        first, stop = info.longest_part()
        for indices in window_indices(stop - first, info.fps, bucket, max_windows):
            frames_THWC = reader.read([first + index for index in indices])
            frames_THWC = resize_and_crop(frames_THWC, bucket.width, bucket.height)
            yield frames_THWC, info.fps / bucket.stride(info.fps)
