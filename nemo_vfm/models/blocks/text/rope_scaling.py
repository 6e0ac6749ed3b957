"""Stretches the frequencies of rotary positions for texts longer than a model was first trained on.

Each way has a `magnitude` besides, by which cosines and signed sines are multiplied: it sharpens attention.
Shape letters: R frequencies, B batch, S tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between

_LARGEST = 1e6  # factor
_MAX_TOKENS = 1 << 40


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions as if they were `factor` times closer (Chen et al. 2023, arXiv 2306.15595).

    Args:
        factor: so many times longer.
    """

    factor: float

    def __post_init__(self) -> None:
        require_between(1 / _LARGEST, _LARGEST, factor=self.factor)

    def scale_frequencies(self, frequencies_R: Tensor, theta: float, lengths_BS: Tensor) -> tuple[Tensor, float]:
        """All of them alike; cosines and sines stay as they are."""
        return frequencies_R / self.factor, 1.0

    def require_fit(self, theta: float, count: int | None = None) -> None:
        """Any base and any number of frequencies will do."""


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Low frequencies stretched, high ones left, a ramp between them (YaRN, Peng et al. 2023, arXiv 2309.00071).

    Args:
        factor: so many times longer.
        trained_on: tokens.
        beta_fast: turns within `trained_on` above which a frequency is left.
        beta_slow: turns below which it is stretched in full.
        truncate: whether the ramp begins and ends at whole dimensions.
        attention_factor: the magnitude; None takes 0.1 ln(factor) + 1 (section 3.4).
    """

    factor: float
    trained_on: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        require_between(1 / _LARGEST, _LARGEST, factor=self.factor, attention_factor=self.attention_factor)
        require_between(1, _MAX_TOKENS, trained_on=self.trained_on)
        if not 0 < self.beta_slow <= self.beta_fast:
            raise ValueError(f"beta_slow {self.beta_slow} must be above zero and no more than {self.beta_fast} "
                             f"(beta_fast)")  # fmt: skip

    @property
    def magnitude(self) -> float:
        """Of cosines and sines."""
        return default_yarn_magnitude(self.factor) if self.attention_factor is None else self.attention_factor

    def scale_frequencies(self, frequencies_R: Tensor, theta: float, lengths_BS: Tensor) -> tuple[Tensor, float]:
        """Each frequency, or it divided by `factor`, or between the two."""
        count = len(frequencies_R)
        # Places of the frequencies that turn so often within `trained_on` tokens (the paper's equation 12).
        low, high = (
            2 * count * math.log(self.trained_on / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * count - 1)
        high += 0.001 if low == high else 0
        stretched = (torch.arange(count, device=frequencies_R.device).float() - low) / (high - low)
        stretched = stretched.clamp(0, 1)
        return frequencies_R * (1 - stretched) + frequencies_R / self.factor * stretched, self.magnitude

    def require_fit(self, theta: float, count: int | None = None) -> None:
        """Refuse a base with which frequencies do not fall."""
        if theta <= 1:
            raise ValueError(f"theta must be above 1 for YaRN, which compares frequencies, got {theta}")


def default_yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """0.1 scale ln(factor) + 1, where positions are stretched."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class LongRope:
    """Each frequency divided by a factor of its own (LongRoPE, Ding et al. 2024, arXiv 2402.13753), as in Phi-3.

    Args:
        short_factor: for texts of at most `trained_on` tokens; one number for each frequency.
        long_factor: for longer texts.
        trained_on: tokens.
        attention_factor: the magnitude.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    trained_on: int
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        require_between(2, _MAX_TOKENS, trained_on=self.trained_on)
        require_between(1 / _LARGEST, _LARGEST, attention_factor=self.attention_factor)
        if len(self.short_factor) != len(self.long_factor):
            raise ValueError(f"{len(self.short_factor)} numbers of short_factor and {len(self.long_factor)} of "
                             f"long_factor are of different heads")  # fmt: skip
        for factors in (self.short_factor, self.long_factor):
            require_between(1 / _LARGEST, _LARGEST, **{f"factors.{place}": one for place, one in enumerate(factors)})

    def scale_frequencies(self, frequencies_R: Tensor, theta: float, lengths_BS: Tensor) -> tuple[Tensor, float]:
        """(B, S, R): of each token by the length of its text."""
        short, long = (frequencies_R / frequencies_R.new_tensor(one) for one in (self.short_factor, self.long_factor))
        return torch.where(lengths_BS[..., None] > self.trained_on, long, short), self.attention_factor

    def require_fit(self, theta: float, count: int | None = None) -> None:
        """Refuse another number of frequencies than of factors."""
        if count is not None and count != len(self.short_factor):
            raise ValueError(
                f"rope.long_context has {len(self.short_factor)} factors, and {2 * count} rotated dimensions "
                f"have {count} frequencies"
            )


def default_long_rope_magnitude(factor: float, trained_on: int) -> float:
    """sqrt(1 + ln(factor) / ln(trained_on)), where texts are longer."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained_on))
