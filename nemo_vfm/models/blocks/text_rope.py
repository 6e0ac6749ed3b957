"""Computes rotary positions of text for queries and keys (Su et al. 2021, arXiv 2104.09864).

Shape letters: B batch, S tokens, E head dimension, R its rotated part.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.core.bounds import LARGEST_THETA, require_between


@runtime_checkable
class RopeScaling(Protocol):
    """One way to stretch rotary positions for texts longer than a model was first trained on."""

    def scale_frequencies(self, frequencies_R: Tensor, theta: float, lengths_BS: Tensor) -> tuple[Tensor, float]:
        """The frequencies for texts of these lengths, (R,) or (B, S, R), and the magnitude.

        Cosines and signed sines are multiplied by the latter: it sharpens attention.
        """

    def require_fit(self, theta: float, count: int | None = None) -> None:
        """Refuse a base of the frequencies, or a number of them, with which this cannot be computed."""


@dataclass(frozen=True, slots=True)
class LongContext:
    """How Llama 3.1 stretches low frequencies for texts longer than it was first trained on.

    Args:
        factor: so many times longer.
        low_freq_factor: wavelengths above `trained_on` / this are stretched in full.
        high_freq_factor: those below `trained_on` / this are left.
        trained_on: tokens.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    trained_on: int = 8192

    def __post_init__(self) -> None:
        if self.factor <= 0 or self.trained_on < 1:
            raise ValueError(f"factor {self.factor} and trained_on {self.trained_on} must be above zero")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor} must be above zero and below high_freq_factor "
                f"{self.high_freq_factor}"
            )

    def scale_frequencies(self, frequencies_R: Tensor, theta: float, lengths_BS: Tensor) -> tuple[Tensor, float]:
        """Each frequency, or it divided by `factor`, or between the two where its wavelength is."""
        turns = self.trained_on * frequencies_R / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return kept * frequencies_R + (1 - kept) * frequencies_R / self.factor, 1.0

    def require_fit(self, theta: float, count: int | None = None) -> None:
        """Any base and any number of frequencies will do."""


@dataclass(frozen=True, slots=True)
class TextRope:
    """Rotary positions of text.

    Args:
        theta: base of the geometric frequencies.
        share: of each head's dimensions that is rotated, the first ones; 1 is all, Nemotron-4 has 0.5.
        long_context: how frequencies are stretched; None leaves them.
    """

    theta: float = 10_000.0
    share: float = 1.0
    long_context: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.theta <= 0:
            raise ValueError(f"theta must be above zero, got {self.theta}")
        if self.long_context is not None:
            self.long_context.require_fit(self.theta)

    def rotary_dim(self, head_dim: int) -> int:
        """R, even."""
        require_between(1, LARGEST_THETA, **{"rope.theta": self.theta})
        require_between(0, 1, **{"rope.share": self.share})
        found = int(head_dim * self.share)
        if not 0 < found <= head_dim or found % 2:
            raise ValueError(
                f"rope.share {self.share} of a head of {head_dim} rotates {found} of its dimensions; it must be an "
                f"even number from 2 to {head_dim}"
            )
        if self.long_context is not None:
            self.long_context.require_fit(self.theta, found // 2)
        return found

    def table(self, rotated: int, places_BS: Tensor, lengths_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines as `rope.rotate` takes them, (B, S, 1, R), fp32.

        A length is at least that which the text of a position will get; a column is enough.
        """
        exponents = torch.arange(0, rotated, 2, device=places_BS.device).float() / rotated
        frequencies, magnitude = self.theta**-exponents, 1.0
        if self.long_context is not None:
            frequencies, magnitude = self.long_context.scale_frequencies(frequencies, self.theta, lengths_BS)
        angles = places_BS[..., None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        if magnitude != 1:
            cos, sin = cos * magnitude, sin * magnitude
        return torch.cat([cos, cos], -1)[:, :, None], torch.cat([-sin, sin], -1)[:, :, None]
