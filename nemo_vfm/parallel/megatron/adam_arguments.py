"""Reads AdamW's arguments out of a recipe's optimizer, for an engine that builds its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory, Optimizers


@dataclass(frozen=True, slots=True)
class AdamArguments:
    """Of one AdamW; groups of parameters may have another `lr` and `weight_decay`."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


def one_factory(optimizers: Optimizers) -> OptimizerFactory:
    """The only one. UserError if the recipe has several, which update in turns."""
    if isinstance(optimizers, Mapping):
        raise UserError(f"engine=megatron has one optimizer, but the recipe has several, which update in turns "
                        f"({', '.join(optimizers)}). Use engine=torch.")  # fmt: skip
    return optimizers


def adam_arguments(factory: OptimizerFactory) -> AdamArguments:
    """What the recipe's optimizer would be built with, found on one parameter."""
    made = factory([("weight", nn.Parameter(torch.zeros(1)))])
    name = type(made).__name__
    group = made.param_groups[0]
    if type(made) is not torch.optim.AdamW and not (type(made) is torch.optim.Adam and not group["weight_decay"]):
        raise UserError(f"Megatron-Core updates with AdamW, but the recipe's optimizer is {name}. Use "
                        f"torch.optim.AdamW, or engine=torch.")  # fmt: skip
    if extra := [key for key in ("amsgrad", "maximize") if group.get(key)]:
        raise UserError(f"Megatron-Core's AdamW has no {' or '.join(extra)}. Leave it out, or use engine=torch.")
    first, second = group["betas"]
    return AdamArguments(float(group["lr"]), (first, second), group["eps"], group["weight_decay"])
