"""Defines the request for a batch of videos, and the result with the step cache's error.

Shape letters: B batch, C channels, T frames, H height, W width.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nemo_vfm.core.bounds import frame_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """A request for videos of one size, one per prompt."""

    prompts: Sequence[str]  #: texts; a video's noise depends on (seed, text, repeat), not on the rest of the batch
    num_frames: int  #: frames of a video; the codec restricts the possible numbers
    height: int  #: in pixels
    width: int  #: in pixels
    fps: float  #: frames per second
    seed: int  #: root of the noise
    #: repetition index of each prompt, which varies the noise; None counts equal texts from 0
    repeats: Sequence[int] | None = None
    #: the first frames of each video, (T, H, W, 3), uint8; None for a video without given frames
    given: Sequence[Tensor | None] | None = None

    def __post_init__(self) -> None:
        frame_rate(self.fps)

    @property
    def size(self) -> tuple[int, int, int]:
        """Frames, height and width of a video, in pixels."""
        return self.num_frames, self.height, self.width

    def names(self) -> list[tuple[str | int, ...]]:
        """Return the name of each video, which with the seed determines its noise."""
        if self.repeats is not None:
            return [("sampling", text, number) for text, number in zip(self.prompts, self.repeats, strict=True)]
        seen: Counter[str] = Counter()
        names: list[tuple[str | int, ...]] = []
        for text in self.prompts:
            names.append(("sampling", text, seen[text]))
            seen[text] += 1
        return names


@dataclass(frozen=True, slots=True)
class CacheError:
    """Difference between a video sampled with the step cache and the same one sampled without it."""

    latents: float  #: RMS of the latents' difference divided by their standard deviation
    psnr_db: float  #: peak signal-to-noise ratio of the pixels; infinite if they are equal


@dataclass(frozen=True, slots=True)
class GeneratedVideos:
    """A batch of generated videos."""

    pixels_BTHWC: Tensor  #: uint8, on the CPU
    num_blocks: int = 0  #: blocks in all steps on this rank; 0 without a step cache
    num_skipped: int = 0  #: blocks that the step cache skipped
    errors: Sequence[CacheError] = ()  #: one per video if the step cache measures, else empty
