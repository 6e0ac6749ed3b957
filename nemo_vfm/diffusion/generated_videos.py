# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Describes videos that are to be drawn, and what was drawn with the step cache's error.

Shape letters: B batch, C channels, T frames, H height, W width.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

from torch import Tensor

from nemo_vfm.core.frame_rate import frame_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """Videos of one size, one a prompt.

    Args:
        prompts: texts; the noise of one is a function of (seed, text, repeat), not of its companions.
        num_frames: frames of a video; the codec says which numbers fit.
        height: pixels.
        width: pixels.
        fps: frames a second.
        seed: root of the noise.
        repeats: which draw of its text each prompt is; None counts equal texts from 0.
        given: the first frames of each video, (T, H, W, 3), uint8; None where nothing is given.

    Raises:
        ValueError: a frame rate that cannot be.
    """

    prompts: Sequence[str]
    num_frames: int
    height: int
    width: int
    fps: float
    seed: int
    repeats: Sequence[int] | None = None
    given: Sequence[Tensor | None] | None = None

    def __post_init__(self) -> None:
        frame_rate(self.fps)

    @property
    def size(self) -> tuple[int, int, int]:
        """Frames, height and width of a video, in pixels."""
        return self.num_frames, self.height, self.width

    def names(self) -> list[tuple[str | int, ...]]:
        """What the noise of each video is a function of, besides the seed."""
        which = list(self.repeats) if self.repeats is not None else _counted(self.prompts)
        return [("sampling", text, number) for text, number in zip(self.prompts, which, strict=True)]


@dataclass(frozen=True, slots=True)
class CacheError:
    """How far a video drawn with the step cache is from the same one drawn without.

    Args:
        latents: root mean square of the latents' difference over their deviation.
        psnr_db: peak signal-to-noise ratio of the pixels; infinite where they are equal.
    """

    latents: float
    psnr_db: float


@dataclass(frozen=True, slots=True)
class GeneratedVideos:
    """What was drawn.

    Args:
        pixels_BTHWC: uint8, on the CPU.
        num_blocks: blocks of all steps, on this rank; 0 without a step cache.
        num_skipped: those of them that the step cache left out.
        errors: of each video, where the step cache measures; else empty.
    """

    pixels_BTHWC: Tensor
    num_blocks: int = 0
    num_skipped: int = 0
    errors: Sequence[CacheError] = ()


def cache_error(latents_CTHW: Tensor, exact_CTHW: Tensor, pixels_THWC: Tensor, exact_THWC: Tensor) -> CacheError:
    """See `CacheError`; pixels are uint8."""
    difference = (latents_CTHW - exact_CTHW).double().square().mean().sqrt() / exact_CTHW.double().std()
    mse = float((pixels_THWC.double() - exact_THWC.double()).square().mean())
    return CacheError(float(difference), float("inf") if mse == 0 else 10 * log10(255**2 / mse))


def _counted(prompts: Sequence[str]) -> list[int]:
    """How many equal texts stand before each."""
    seen: Counter[str] = Counter()
    numbers = []
    for text in prompts:
        numbers.append(seen[text])
        seen[text] += 1
    return numbers
