"""Builds an optimizer whose groups of parameters, found by name, have a learning rate and weight decay of their own."""

import inspect
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from nemo_vfm.core.types.component import component
from nemo_vfm.parallel.plan.sharding_spec import Params


class ParamGroup:
    """Parameters that are updated otherwise than the rest.

    Args:
        parameters: patterns of their names, in which * matches anything, dots too: "*.bias".
        lr_scale: the learning rate is multiplied by it.
        weight_decay: instead of the optimizer's; None keeps that.

    Raises:
        ValueError: there is no pattern, or a number is negative.
    """

    def __init__(
        self, *, parameters: Sequence[str], lr_scale: float = 1.0, weight_decay: float | None = None
    ) -> None:  # fmt: skip
        if not parameters:
            raise ValueError("parameters is empty; name a pattern, or leave the group out")
        if not lr_scale >= 0 or not (weight_decay or 0) >= 0:
            raise ValueError(f"lr_scale ({lr_scale}) and weight_decay ({weight_decay}) must be at least 0")
        self.parameters, self.lr_scale, self.weight_decay = tuple(parameters), lr_scale, weight_decay

    def matches(self, name: str) -> bool:
        """Whether a parameter belongs to it."""
        return any(fnmatchcase(name, pattern) for pattern in self.parameters)


@component
def grouped_optimizer(
    params: Params, *, lr: float, betas: tuple[float, float] | None = None, eps: float | None = None,
    weight_decay: float | None = None, amsgrad: bool | None = None, maximize: bool | None = None,
    foreach: bool | None = None, capturable: bool | None = None, fused: bool | None = None, kind: str = "AdamW",
    options: Mapping[str, bool | float | str | Sequence[float]] | None = None,
    groups: Mapping[str, ParamGroup] | None = None,
) -> torch.optim.Optimizer:  # fmt: skip
    """An optimizer of `torch.optim`, by default AdamW. None keeps the optimizer's own default.

    Args:
        params: with their names, where there are groups.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: is added to the denominator.
        weight_decay: of all parameters whose group sets none.
        amsgrad: keep the largest average of squares.
        maximize: go up instead of down.
        foreach: update many tensors at once.
        capturable: allow CUDA graphs.
        fused: update in one kernel.
        kind: the class in `torch.optim`.
        options: further arguments of that class, such as momentum of SGD.
        groups: by names that you choose. Of several that match a parameter, the last applies.

    Raises:
        ValueError: there is no such class, or it does not take one of the arguments.
    """
    make: Any = getattr(torch.optim, kind, None)
    if not (inspect.isclass(make) and issubclass(make, torch.optim.Optimizer)) or make is torch.optim.Optimizer:
        raise ValueError(f"torch.optim has no optimizer {kind!r}; name one such as AdamW, SGD or Adafactor")
    named = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
             "foreach": foreach, "capturable": capturable, "fused": fused, **(options or {})}  # fmt: skip
    given: dict[str, Any] = {"lr": lr} | {name: value for name, value in named.items() if value is not None}
    decays = any(group.weight_decay is not None for group in (groups or {}).values())
    wanted = {*given, *(["weight_decay"] if decays else [])}
    if unknown := sorted(wanted - inspect.signature(make).parameters.keys()):
        raise ValueError(f"torch.optim.{kind} takes no {', '.join(unknown)}; set it to null")
    made: torch.optim.Optimizer = make(params if not groups else _group_params(list(params), groups, lr), **given)
    return made


def _group_params(
    params: Sequence[nn.Parameter | tuple[str, nn.Parameter]], groups: Mapping[str, ParamGroup], lr: float
) -> list[dict[str, Any]]:
    """All groups, also those that are empty here: a pipeline's ranks have the same ones.

    Parameters have no names in them: torch wants one name at least in every group, or none at all.
    """
    rest: dict[str, Any] = {"params": []}  # first, since the rate of the first group is the one that is reported
    found: dict[str, dict[str, Any]] = {}
    for key, group in groups.items():
        own = {} if group.weight_decay is None else {"weight_decay": group.weight_decay}
        found[key] = {"params": [], "name": key, "lr": lr * group.lr_scale, **own}
    for one in params:
        if not isinstance(one, tuple):
            raise ValueError("groups match names of parameters; pass model.named_parameters()")
        matching = [key for key, group in groups.items() if group.matches(one[0])]
        (found[matching[-1]] if matching else rest)["params"].append(one[1])
    return [rest, *found.values()]
