"""Declares updaters, which turn the gradients of a step into new weights: of one kind of weights or state each."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from nemo_vfm.parallel.ranks.gather import Gather


class Updater(Protocol):
    """Updates one kind of weights or state: dense weights, embedding tables, the histories of FP8.

    In each step the engine calls `begin`, runs forward and backward, then calls `reduce`, `squared_norm`, and either
    `apply` or `discard`: on every rank, of every updater, in the same order.
    """

    group: str  #: the name of its tensors in a checkpoint

    def begin(self) -> None:
        """Drop the gradients of the step before."""
        ...

    def reduce(self) -> None:
        """Sum the gradients over the ranks that have parts of them."""
        ...

    def squared_norm(self) -> float:
        """This rank's share of the sum of squares of the summed gradients.

        Over all ranks it counts every number once. It is not finite where a gradient is not, and 0 for gradients that
        take no part in clipping.
        """
        ...

    def set_lr(self, lr_factor: float) -> None:
        """Set the learning rates of the coming steps to `lr_factor` times the recipe's."""
        ...

    def apply(self, divisor: float, clip_factor: float) -> None:
        """Update with (summed gradients / divisor * clip_factor)."""
        ...

    def discard(self) -> None:
        """End a step without an update: nothing may be left of its gradients."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the model's weights; every rank must call it."""
        ...

    def load(self, state: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `state`, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: it is another model's.
        """
        ...


class DenseUpdater(Updater, Protocol):
    """Updates the parameters of a model by one of torch's optimizers."""

    optimizer: torch.optim.Optimizer

    def gradients(self) -> dict[str, Tensor]:
        """Those of the last step by parameter, this rank's part where others have more; every rank must call it."""
        ...


def keep_initial_lrs(optimizer: torch.optim.Optimizer) -> None:
    """Note each group's learning rate where torch's schedulers look for it."""
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])


def scale_lrs(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to `factor` times its initial one."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
