"""Computes how far noise levels are shifted for a sample's size: larger samples need more noise.

Neighbouring latents hold the same information, so the larger the picture is, the more noise it takes to hide as much
of it (Esser et al. 2024, section 5.3.2). One rule serves training draws and sampling. A shift s moves a noise level of
flow matching to s sigma / (1 + (s - 1) sigma).
"""

import math
from collections.abc import Sequence


class LinearShift:
    """s = e^mu with mu linear in the number of tokens, as the Flux models are sampled.

    Args:
        low: mu at `low_tokens`.
        high: mu at `high_tokens`.
        low_tokens: 256 tokens are an image of 256 pixels squared, at 8 pixels a latent and 2 latents a token.
        high_tokens: 4096 tokens are an image of 1024 pixels squared.
        most: s goes no further. The line was drawn for images: without a bound it gives a video of 56,320 tokens e^10.
        patch: latent frames, rows and columns of one token: those of the model.
    """

    def __init__(
        self, *, low: float = 0.5, high: float = 1.15, low_tokens: int = 256, high_tokens: int = 4096,
        most: float = 20.0, patch: tuple[int, int, int] = (1, 2, 2),
    ) -> None:  # fmt: skip
        if not 0 < low_tokens < high_tokens:
            raise ValueError(f"low_tokens ({low_tokens}) must lie above 0 and below high_tokens ({high_tokens})")
        if high < low or most < math.exp(low):
            raise ValueError(f"high ({high}) must not be below low ({low}), nor most ({most}) below e^{low}")
        self.low, self.high, self.low_tokens, self.high_tokens = low, high, low_tokens, high_tokens
        self.most, self.patch = most, _require_patch(patch)

    def factor(self, size_THW: Sequence[int]) -> float:
        """e^mu, at most `most`."""
        beyond = tokens_of(size_THW, self.patch) - self.low_tokens
        mu = self.low + (self.high - self.low) * beyond / (self.high_tokens - self.low_tokens)
        return math.exp(min(mu, math.log(self.most)))


class SqrtShift:
    """s = max(least, scale sqrt(tokens / at_tokens)): the same signal to noise at any size (Esser et al. 2024, eq. 23).

    Args:
        scale: s at `at_tokens`.
        at_tokens: number of tokens of the size that `scale` was found for.
        least: s goes no lower.
        patch: latent frames, rows and columns of one token: those of the model.
    """

    def __init__(
        self, *, scale: float = 3.0, at_tokens: int = 16_384, least: float = 1.0,
        patch: tuple[int, int, int] = (1, 2, 2),
    ) -> None:  # fmt: skip
        if scale <= 0 or at_tokens < 1 or least <= 0:
            raise ValueError(f"scale ({scale}), at_tokens ({at_tokens}) and least ({least}) must be above 0")
        self.scale, self.at_tokens, self.least, self.patch = scale, at_tokens, least, _require_patch(patch)

    def factor(self, size_THW: Sequence[int]) -> float:
        """max(least, scale sqrt(tokens / at_tokens))."""
        return max(self.least, self.scale * math.sqrt(tokens_of(size_THW, self.patch) / self.at_tokens))


def tokens_of(size_THW: Sequence[int], patch: tuple[int, int, int]) -> int:
    """Tokens of latents of this size; a side that is no multiple of the patch counts its padded one."""
    return math.prod(-(-side // step) for side, step in zip(size_THW, patch, strict=True))


def _require_patch(patch: Sequence[int]) -> tuple[int, int, int]:
    if len(patch) != 3 or min(patch) < 1:
        raise ValueError(f"patch must be three sizes of at least 1 (frames, rows, columns), got {tuple(patch)}")
    return patch[0], patch[1], patch[2]  # a recipe gives a list
