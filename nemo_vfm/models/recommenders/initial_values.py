"""Draws the first weights of recommenders from a seed and their names."""

import math

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator


def draw_weights(model: nn.Module, seed: int) -> None:
    """Draw every parameter from (seed, its name), so that no layout of devices changes it; nothing on meta."""
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            with torch.no_grad():
                parameter.copy_(first_weight(name, parameter.shape, seed))


def first_weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Matrices normal with variance 2 / (inputs + outputs), as DLRM's; norms 1, slopes 1/4, other vectors 0."""
    if ".slopes." in name:
        return torch.full(shape, 0.25)
    if len(shape) < 2:
        return torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
    std = math.sqrt(2 / (shape[0] + shape[1]))
    return torch.randn(shape, generator=generator(seed, "init", name)).mul_(std)
