"""Freezes a model and adds low-rank adapters to its linears, so that only the adapters are trained."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.counter_random import uniform
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.low_rank import (
    AdaptedLinear,
    FusedProjections,
    HasFusedLinears,
    LowRank,
    Method,
    Rank,
    adapters_of,
)
from nemo_vfm.parallel.apply.frozen_weights import freeze
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.plan.sharding_spec import match_modules

#: Name of the adapter that a training creates.
TRAINED = "own"


class AdapterTarget:
    """Linears to adapt.

    Args:
        modules: pattern of their names in which * matches one component, such as blocks.*.self_attention.*.
        rank: rank of each adapter.
        alpha: B A is multiplied by alpha / rank.
        parts: projections of fused linears to adapt, such as [q, v]; None adapts all.
    """

    def __init__(self, *, modules: str, rank: int, alpha: float, parts: Sequence[str] | None = None) -> None:
        if rank < 1 or not alpha > 0:
            raise ValueError(f"rank ({rank}) must be at least 1 and alpha ({alpha}) above 0")
        if parts is not None and not parts:
            raise ValueError("parts is empty; leave it out to adapt all")
        self.modules, self.rank, self.alpha = modules, rank, alpha
        self.parts = None if parts is None else tuple(parts)


class LowRankAdapter:
    """Low-rank adapters that are trained instead of the model's weights.

    Args:
        targets: linears to adapt, under names that you choose; the last target that matches a linear applies.
        method: lora adds a low-rank matrix to each weight; dora also learns the norm of each row.
    """

    def __init__(self, *, targets: Mapping[str, AdapterTarget], method: Method = "lora") -> None:
        if not targets:
            raise ValueError("targets is empty; name the linears to adapt")
        self.targets, self.method = dict(targets), method

    def ranks(self, model: nn.Module) -> dict[str, dict[str, Rank]]:
        """Return the rank of each adapted projection of each adapted linear."""
        linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        found: dict[str, dict[str, Rank]] = {}
        for key, target in self.targets.items():
            if not (names := match_modules(target.modules, linears)):
                starred = (".".join("*" if part.isdigit() else part for part in name.split(".")) for name in linears)
                kinds = list(dict.fromkeys(starred))
                raise ValueError(f"targets.{key}.modules {target.modules!r} matches no linear of this "
                                 f"{type(model).__name__}, which has {', '.join(kinds[:12])}"
                                 f"{' and others' if len(kinds) > 12 else ''}")  # fmt: skip
            parts_of = {name: projections_of(model, name).names for name in names}
            selected = {name: tuple(part for part in parts if target.parts is None or part in target.parts)
                        for name, parts in parts_of.items()}  # fmt: skip
            if not any(selected.values()):
                known = dict.fromkeys(part for parts in parts_of.values() for part in parts)
                raise ValueError(f"targets.{key}.parts {list(target.parts or ())} match none of its linears' "
                                 f"projections: {', '.join(known)}")  # fmt: skip
            rank = Rank(target.rank, target.alpha)
            found |= {name: dict.fromkeys(parts, rank) for name, parts in selected.items() if parts}
        return found

    def state(self) -> dict[str, Json]:
        """Return the arguments, which a checkpoint stores because its matrices do not contain alpha."""
        targets: dict[str, Json] = {
            name: {"modules": one.modules, "rank": one.rank, "alpha": one.alpha,
                   "parts": None if one.parts is None else list(one.parts)}
            for name, one in self.targets.items()
        }  # fmt: skip
        return {"method": self.method, "targets": targets}

    def differs_from(self, before: Json) -> str | None:
        """Return the arguments that differ from a checkpoint's, with both values; None if there are none to report."""
        if not isinstance(before, dict):
            return None
        old, new = dict(_flat(before)), dict(_flat(self.state()))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return ", ".join(f"{key} {old.get(key)} before, {new.get(key)} now" for key in changed) or None


class AdaptedModel:
    """Builds a model with frozen weights and trainable adapters."""

    def __init__(self, model: Factory[[], nn.Module], adapters: LowRankAdapter) -> None:
        self.model, self.adapters = model, adapters

    def __call__(self) -> nn.Module:
        model = self.model()
        freeze(model)
        attach(model, TRAINED, self.adapters.ranks(model), self.adapters.method)
        seed = torch.initial_seed()  # adapters are initialised from (seed, name), as the model's own weights
        if hasattr(model, "initial_weight"):
            model.initial_weight = partial(_initial_weight, model.initial_weight)  # type: ignore[assignment]
        for name, parameter in model.named_parameters():
            if is_adapter(name) and not parameter.is_meta:
                with torch.no_grad():
                    parameter.copy_(initial_value(name, parameter.shape, seed))
        return model


def attach(model: nn.Module, name: str, ranks: Mapping[str, Mapping[str, Rank]], method: Method) -> None:
    """Add an adapter of zeros to each named linear."""
    modules = dict(model.named_modules())
    for place, ranks_by_part in ranks.items():
        linear = modules[place]
        assert isinstance(linear, nn.Linear)
        adapters_of(linear)[name] = LowRank(linear, projections_of(model, place), ranks_by_part, method)


def initial_value(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Return A uniform within 1 / sqrt(inputs), B zero, and magnitudes one until `begin` sets them."""
    if name.endswith("_a"):
        bound = shape[1] ** -0.5
        return uniform(shape, seed, "init", name).mul_(2 * bound).sub_(bound)
    return torch.ones(shape) if name.endswith("_magnitude") else torch.zeros(shape)


def _initial_weight(base_weight: Any, name: str, shape: torch.Size, seed: int) -> Tensor:
    if is_adapter(name):
        return initial_value(name, shape, seed)
    value: Tensor = base_weight(name, shape, seed)
    return value


def begin(model: nn.Module) -> None:
    """Initialise DoRA magnitudes from the loaded weights; every tensor rank must call it."""
    for _, linear in adapted_linears(model):
        for adapter in linear.adapters.values():
            assert isinstance(adapter, LowRank)
            for name in adapter.ranks if adapter.method == "dora" else ():
                with torch.no_grad():  # m = |W|, which equals |W + s B A| while B is zero
                    magnitude = local(adapter.get_parameter(f"{name}_magnitude"))
                    magnitude.copy_(adapter.row_norms(linear, name))


def adapted_linears(model: nn.Module) -> list[tuple[str, AdaptedLinear]]:
    """Return the adapted linears with their names."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, AdaptedLinear)]


def projections_of(model: nn.Module, name: str) -> FusedProjections:
    """Return the projections that a linear contains."""
    above, _, child = name.rpartition(".")
    parent = model.get_submodule(above)
    fused = parent.fused_rows().get(child) if isinstance(parent, HasFusedLinears) else None
    return FusedProjections() if fused is None else FusedProjections(tuple(fused), tuple(fused.values()))


def _flat(values: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
