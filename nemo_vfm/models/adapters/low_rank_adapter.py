# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Freezes a model and gives its linears low-rank adapters, which alone are trained."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.adapted_linear import AdaptedLinear, adapters_of
from nemo_vfm.models.adapters.low_rank import LowRank, Method, Parts, Rank
from nemo_vfm.models.blocks.attention import CrossAttention, SelfProjections
from nemo_vfm.parallel.apply.beside_linear import is_adapter
from nemo_vfm.parallel.apply.frozen_weights import freeze
from nemo_vfm.parallel.plan.sharding_spec import matching

#: The adapter that a training makes.
OWN = "own"
#: Joint projections of attention, and what they join.
_JOINT = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "image_kv": ("k", "v")}


class AdapterTarget:
    """Linears that get an adapter.

    Args:
        modules: their names with * for any part between dots, such as blocks.*.self_attention.* or blocks.*.mlp.*.
        rank: of each.
        alpha: what is added is multiplied by alpha / rank.
        parts: of joint projections, such as [q, v]; None takes all.

    Raises:
        ValueError: a rank below 1, or an alpha that is not above 0.
    """

    def __init__(self, *, modules: str, rank: int, alpha: float, parts: Sequence[str] | None = None) -> None:
        if rank < 1 or not alpha > 0:
            raise ValueError(f"rank ({rank}) must be at least 1 and alpha ({alpha}) above 0")
        if parts is not None and not parts:
            raise ValueError("parts is empty; leave it out to take all")
        self.modules, self.rank, self.alpha = modules, rank, alpha
        self.parts = None if parts is None else tuple(parts)

    def state(self) -> dict[str, Json]:
        """Its arguments."""
        parts = None if self.parts is None else list(self.parts)
        return {"modules": self.modules, "rank": self.rank, "alpha": self.alpha, "parts": parts}


class LowRankAdapter:
    """What is trained in place of a model's own weights.

    Args:
        targets: which linears, by names of your own; a linear belongs to the last target that names it.
        method: lora adds a matrix of low rank to each weight; dora also learns the length of each of its rows.

    Raises:
        ValueError: no targets.
    """

    def __init__(self, *, targets: Mapping[str, AdapterTarget], method: Method = "lora") -> None:
        if not targets:
            raise ValueError("targets is empty; name the linears that get an adapter")
        self.targets, self.method = dict(targets), method

    def ranks(self, model: nn.Module) -> dict[str, dict[str, Rank]]:
        """The rank of each part of each linear that gets an adapter.

        Raises:
            ValueError: a target names no linear, or parts that none of its linears has.
        """
        linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        found: dict[str, dict[str, Rank]] = {}
        for key, target in self.targets.items():
            if not (names := matching(target.modules, linears)):
                raise ValueError(f"targets.{key}.modules {target.modules!r} names no linear of this "
                                 f"{type(model).__name__}; it has {_some(linears)}")  # fmt: skip
            chosen = {name: _chosen(parts_of(model, name), target.parts) for name in names}
            if not any(chosen.values()):
                known = dict.fromkeys(part for name in names for part in parts_of(model, name).names)
                raise ValueError(f"targets.{key}.parts {list(target.parts or ())} are none of what its linears join: "
                                 f"{', '.join(known)}")  # fmt: skip
            rank = Rank(target.rank, target.alpha)
            found |= {name: dict.fromkeys(parts, rank) for name, parts in chosen.items() if parts}
        return found

    def state(self) -> dict[str, Json]:
        """What a checkpoint remembers of it, since its matrices do not hold it all."""
        return {"method": self.method, "targets": {name: one.state() for name, one in self.targets.items()}}

    def differs_from(self, before: Json) -> str | None:
        """Each key that is not as a checkpoint remembers it, with both values; None where all are, or nothing is
        remembered."""
        if not isinstance(before, dict):
            return None
        old, new = dict(_flat(before)), dict(_flat(self.state()))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return ", ".join(f"{key} {old.get(key)} before, {new.get(key)} now" for key in changed) or None


class AdaptedModel:
    """Builds a model whose own weights are frozen and whose linears have adapters.

    Args:
        model: builds the model.
        adapters: what it gets.
    """

    def __init__(self, model: Factory[[], nn.Module], adapters: LowRankAdapter) -> None:
        self.model, self.adapters = model, adapters

    def __call__(self) -> nn.Module:
        """The model; A is drawn from the seed, B is zero, so that it computes what it did."""
        model = self.model()
        freeze(model)
        attach(model, OWN, self.adapters.ranks(model), self.adapters.method)
        draw(model, torch.initial_seed())
        return model


def attach(model: nn.Module, name: str, ranks: Mapping[str, Mapping[str, Rank]], method: Method) -> None:
    """Give linears an adapter of zeros."""
    modules = dict(model.named_modules())
    for place, of_parts in ranks.items():
        linear = modules[place]
        assert isinstance(linear, nn.Linear)
        adapters_of(linear)[name] = LowRank(linear, parts_of(model, place), of_parts, method)


def draw(model: Any, seed: int) -> None:
    """Draw the adapters' first weights from (seed, name), as the model draws its own."""
    if hasattr(model, "initial_weight"):
        model.initial_weight = partial(_initial, model.initial_weight)
    for name, parameter in model.named_parameters():
        if is_adapter(name) and not parameter.is_meta:
            with torch.no_grad():
                parameter.copy_(first_value(name, parameter.shape, seed))


def first_value(name: str, shape: torch.Size, seed: int) -> Tensor:
    """A uniform within 1 / sqrt(inputs), B zero, magnitudes one until the weights are there."""
    if name.endswith("_a"):
        bound = shape[1] ** -0.5
        return torch.rand(shape, generator=generator(seed, "init", name)).mul_(2 * bound).sub_(bound)
    return torch.ones(shape) if name.endswith("_magnitude") else torch.zeros(shape)


def _initial(others: Any, name: str, shape: torch.Size, seed: int) -> Tensor:
    if is_adapter(name):
        return first_value(name, shape, seed)
    first: Tensor = others(name, shape, seed)
    return first


def begin(model: nn.Module) -> None:
    """Set the magnitudes of new adapters by the weights, once these are there; every tensor rank must call it."""
    for _, linear in adapted_linears(model):
        for adapter in linear.adapters.values():
            assert isinstance(adapter, LowRank)
            adapter.set_magnitudes(linear)


def adapted_linears(model: nn.Module) -> list[tuple[str, AdaptedLinear]]:
    """Those that have adapters, by name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, AdaptedLinear)]


def parts_of(model: nn.Module, name: str) -> Parts:
    """What a linear joins."""
    above, _, own = name.rpartition(".")
    parent = model.get_submodule(above)
    if own in _JOINT and isinstance(parent, SelfProjections | CrossAttention):
        return Parts(_JOINT[own], parent.head_dim)
    return Parts()


def _flat(values: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """What stands in mappings, each by its keys with dots between."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _chosen(parts: Parts, asked: Sequence[str] | None) -> tuple[str, ...]:
    return parts.names if asked is None else tuple(part for part in parts.names if part in asked)


def _some(names: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names))
    return ", ".join(kinds[:12]) + (" and others" if len(kinds) > 12 else "")
