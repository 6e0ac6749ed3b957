"""Builds models whose first weights follow from a seed."""

import torch
from torch import nn

from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply.apply_parallelism import SeededWeights


def build_model(factory: Factory[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights are a function of `seed` alone, whatever was drawn before.

    On the meta device, too: embedding tables keep the seed and draw their rows when they get memory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        return factory()


def build_unfilled(factory: Factory[[], nn.Module], seed: int) -> tuple[nn.Module, bool]:
    """The model, and whether it is on the meta device, as it is where it may be too large for one device.

    A model that brings weights of its own keeps them.
    """
    with torch.device("meta"):
        model = build_model(factory, seed)
    if (
        isinstance(model, SeededWeights)
        and not list(model.buffers())
        and all(one.is_meta for one in model.parameters())
    ):
        return model, True
    return build_model(factory, seed), False
