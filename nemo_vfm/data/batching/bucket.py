"""Assigns a clip to the bucket whose shape it is trained in, or gives the reason why none fits."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nemo_vfm.core.bounds import MAX_FRAMES, MAX_SIDE_PX, frame_rate, is_frame_rate, require_between

_FPS_TOLERANCE = 1.01  # 23.976 fps may serve a bucket of 24


@dataclass(frozen=True, slots=True)
class Bucket:
    """One shape that samples are cut to.

    Args:
        width: pixels.
        height: pixels.
        num_frames: frames; 1 makes it a bucket of images.
        fps: frames per second after sampling in time; None keeps each clip's own rate.
        batch_size: samples of a global batch of this shape; None takes the data module's.
        max_crop: the share of a picture that may be cut away, 0 to 1; what would lose more does not fit. A film of 9:16
            loses 0.68 in a bucket of 16:9, and one of 10:1 loses 0.9 in a square.
    """

    width: int
    height: int
    num_frames: int
    fps: float | None = None
    batch_size: int | None = None
    max_crop: float = 0.75

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.num_frames) < 1:
            raise ValueError(f"a bucket needs pixels and frames, got {self.width}x{self.height}x{self.num_frames}")
        require_between(1, MAX_SIDE_PX, width=self.width, height=self.height)
        require_between(1, MAX_FRAMES, num_frames=self.num_frames)
        if self.fps is not None:
            frame_rate(self.fps, "a bucket's fps")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"a bucket's batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.max_crop <= 1:
            raise ValueError(f"a bucket's max_crop must be between 0 and 1, got {self.max_crop}")

    def frames_needed(self, fps: float) -> int:
        """How many frames a clip of this rate must have."""
        return 1 + math.ceil((self.num_frames - 1) * self.stride(fps) - 1e-6)

    def stride(self, fps: float) -> float:
        """Source frames a sampled frame; 1 where the rates agree within 1 %."""
        stride = fps / self.fps if self.fps is not None else 1.0
        return 1.0 if 1 / _FPS_TOLERANCE <= stride <= _FPS_TOLERANCE else stride

    def crop(self, width: int, height: int) -> float:
        """The share of a picture of this size that is cut away."""
        shape, own = width / height, self.width / self.height
        return round(1 - min(shape, own) / max(shape, own), 9)


class BucketChoice(NamedTuple):
    """A bucket's name, or None and the reason as a few words fit for counting."""

    bucket: str | None
    reason: str = ""


class Buckets:
    """The shapes of a data set. Curation and training name the same ones.

    Args:
        buckets: name -> shape.
    """

    def __init__(self, *, buckets: Mapping[str, Bucket]) -> None:
        if not buckets:
            raise ValueError("expected at least one bucket, got none")
        self.buckets = dict(buckets)

    def assign(self, width: int, height: int, num_frames: int, fps: float) -> BucketChoice:
        """The bucket nearest in aspect ratio, of those the largest, that needs no invented pixels or frames."""
        if not is_frame_rate(fps):
            return BucketChoice(None, "impossible frame rate")
        fits, is_image = dict(self.buckets), num_frames == 1
        checks: list[tuple[str, Callable[[Bucket], bool]]] = [
            ("no bucket for images" if is_image else "only buckets for images",
             lambda bucket: (bucket.num_frames == 1) == is_image),
            ("frame rate below every bucket", lambda bucket: is_image or bucket.stride(fps) >= 1),
            ("too short for every bucket", lambda bucket: num_frames >= bucket.frames_needed(fps)),
            ("too small for every bucket", lambda bucket: width >= bucket.width and height >= bucket.height),
            ("cropped too much by every bucket (max_crop)",
             lambda bucket: bucket.crop(width, height) <= bucket.max_crop),
        ]  # fmt: skip
        for reason, is_fit in checks:
            fits = {name: bucket for name, bucket in fits.items() if is_fit(bucket)}
            if not fits:
                return BucketChoice(None, reason)
        aspect = math.log(width / height)
        return BucketChoice(
            min(
                fits,
                key=lambda name: (
                    round(abs(math.log(fits[name].width / fits[name].height) - aspect), 6),
                    -fits[name].width * fits[name].height * fits[name].num_frames,
                    name,
                ),
            )
        )
