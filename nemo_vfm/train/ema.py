"""Keeps the running average of a model's weights, from which samples are drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.apply.local_shard import copy_own, local_storage


class EMA:
    """Exponential moving average of all weights, with a warm-up: decay_t = min(decay, (1 + t) / (10 + t)).

    The warm-up keeps the random initial weights from lingering in short runs. Each rank averages the parts of weights
    that it holds: an average of numbers does not care where the others are. Averages of bf16 and fp16 are fp32: in
    the smaller format, steps of 1 - decay would be rounded away.

    Args:
        decay: weight of the past at each optimizer step, in [0, 1).
    """

    def __init__(self, *, decay: float = 0.9999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        self.decay = decay
        self.weights: dict[str, Tensor] = {}

    def start(self, model: nn.Module) -> None:
        """Begin from the model's present weights."""
        self.weights = {name: _widen(tensor.detach().clone()) for name, tensor in learned_state(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model's weights after optimizer step number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        source = learned_state(model)
        moved = [name for name, tensor in self.weights.items() if tensor.is_floating_point()]
        mine, theirs = ([_widen(local_storage(weights[name])) for name in moved] for weights in (self.weights, source))
        torch._foreach_lerp_(mine, theirs, 1 - decay)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it."""
        return self.weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Put saved averages back, whatever layout they are from. CorruptCheckpoint if they are of another model."""
        from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
        from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill

        fill(self.weights, weights, gather_group())

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Put whole values in the place of some averages: of what is measured of the averaged weights, not averaged."""
        for name, tensor in weights.items():
            copy_own(self.weights[name], tensor)

    @contextmanager
    def apply_to(self, model: nn.Module) -> Iterator[nn.Module]:
        """The model with the averaged weights inside the block, and with its own again after it."""
        own = {name: local_storage(tensor).clone() for name, tensor in learned_state(model).items()}
        _put(model, self.weights)
        try:
            yield model
        finally:
            _put(model, own)


def _widen(tensor: Tensor) -> Tensor:
    """The tensor itself where it is not of a format of 16 bits."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@torch.no_grad()
def _put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in learned_state(model).items():
        local_storage(tensor).copy_(local_storage(weights[name]))
