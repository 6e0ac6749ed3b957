"""Computes the terms of a pixel loss between a reconstruction and its original, one number a sample.

Shape letters: B batch, C channels, T frames, H height, W width. Pixels are in [-1, 1].
"""

from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F


@runtime_checkable
class Term(Protocol):
    """One of the things that a reconstruction should get right."""

    def losses(self, made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
        """(B,), times the term's weight; 0 for a perfect reconstruction."""
        ...


class Pixels:
    """The mean difference of pixels.

    Args:
        weight: factor on the term.
        power: 1 for absolute differences, which leave edges sharper; 2 for squares, which PSNR counts.
    """

    def __init__(self, *, weight: float = 1.0, power: Literal[1, 2] = 1) -> None:
        self.weight, self.power = _require_weight(weight), power

    def losses(self, made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
        """(B,)."""
        return self.weight * _mean((made_BCTHW - video_BCTHW).abs() ** self.power)


class Edges:
    """The mean absolute difference of neighbouring pixels' differences, along height and width.

    Blur costs little per pixel and much per edge; this needs no other network, as a perceptual loss would.

    Args:
        weight: factor on the term.
    """

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = _require_weight(weight)

    def losses(self, made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
        """(B,)."""
        error = made_BCTHW - video_BCTHW
        return self.weight * (_mean(error.diff(dim=3).abs()) + _mean(error.diff(dim=4).abs()))


class Motion:
    """The mean absolute difference of what changes from a frame to the next; 0 for an image.

    Args:
        weight: factor on the term.
    """

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = _require_weight(weight)

    def losses(self, made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
        """(B,)."""
        if made_BCTHW.shape[2] == 1:
            return made_BCTHW.new_zeros(len(made_BCTHW))
        return self.weight * _mean((made_BCTHW - video_BCTHW).diff(dim=2).abs())


class Scales:
    """The mean absolute difference of both at halved, quartered, ... height and width, added up.

    Args:
        weight: factor on the term.
        levels: how often the frames are halved; sides that cannot be halved any more end it.
    """

    def __init__(self, *, weight: float = 1.0, levels: int = 3) -> None:
        if levels < 1:
            raise ValueError(f"levels must be at least 1, got {levels}")
        self.weight, self.levels = _require_weight(weight), levels

    def losses(self, made_BCTHW: Tensor, video_BCTHW: Tensor) -> Tensor:
        """(B,)."""
        error, total = (made_BCTHW - video_BCTHW).flatten(1, 2), made_BCTHW.new_zeros(len(made_BCTHW))
        for _ in range(self.levels):
            if min(error.shape[2:]) < 2:
                break
            error = F.avg_pool2d(error, 2)
            total = total + _mean(error.abs())
        return self.weight * total


def divergence(mean_BM: Tensor, logvar_BM: Tensor) -> Tensor:
    """KL divergence from the standard normal, averaged over the latents' numbers, (B,) (1312.6114, appendix B)."""
    return 0.5 * (mean_BM.square() + logvar_BM.exp() - 1 - logvar_BM).mean(dim=1)


def _mean(values: Tensor) -> Tensor:
    return values.flatten(1).mean(dim=1)


def _require_weight(weight: float) -> float:
    if not 0 <= weight < torch.inf:
        raise ValueError(f"a term's weight must be finite and not negative, got {weight}")
    return weight
