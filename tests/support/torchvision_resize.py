"""Stands in for the one function of torchvision that diffusers' Cosmos calls: its wheel fails beside torch for CPUs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Torchvision:
    """`torchvision.transforms`, as far as a padding mask needs it."""

    class InterpolationMode:
        NEAREST = "nearest"

    class functional:
        @staticmethod
        def resize(mask: Tensor, size: Sequence[int], interpolation: str) -> Tensor:
            return torch.nn.functional.interpolate(mask.float(), size=list(size), mode=interpolation)


def stand_in() -> Any:
    """diffusers' module of Cosmos, which finds the stand-in where it looks for torchvision; None without diffusers."""
    try:
        from diffusers.models.transformers import transformer_cosmos
    except ImportError:
        return None
    if not hasattr(transformer_cosmos, "transforms"):
        transformer_cosmos.transforms = Torchvision
    return transformer_cosmos
