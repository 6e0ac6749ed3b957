# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a job's networks on the meta device, so that their sizes can be compared without memory or weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import BoundFactory, RecipeError
from nemo_vfm.core.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import nn

Address = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltNetwork:
    """A network without memory.

    Args:
        module: None where it cannot be known yet.
        is_pretrained: whether a folder says what it is; its sizes can then not be changed.
    """

    module: "nn.Module | None" = None
    is_pretrained: bool = False

    def instead(self, key: str, value: int) -> tuple[Address, str]:
        """Where another number is to be given for `key`, and what to give there."""
        if self.is_pretrained:
            return ("model", "folder"), "the folder of a network that fits"
        return ("model", key), f"{key}={value}"


def built_networks(job: Any) -> list[BuiltNetwork]:
    """The networks of a job that has a model, at least one; a pipeline may have one for each range of noise levels."""
    factory = getattr(job.model, "model", job.model)  # of a model with adapters, that of the model
    if not isinstance(factory, BoundFactory):
        return [BuiltNetwork()]
    is_class = isinstance(factory.call.target, type)
    if not is_class and not _reads_config_alone(factory.call.target):
        return [BuiltNetwork()]
    from nemo_vfm.parallel.plan.sharding_spec import networks_of
    from nemo_vfm.parallel.plan.static_memory import on_meta

    try:
        return [BuiltNetwork(one, is_pretrained=not is_class) for one in networks_of(on_meta(factory))]
    except (RecipeError, UserError, DataError, OSError):  # of a folder that is given later; a run says what it lacks
        return [BuiltNetwork()]


def _reads_config_alone(target: object) -> bool:
    """Whether a function builds a network from a folder's config.json, without its weights."""
    from nemo_vfm.models.convert.video.pretrained_video import pretrained_experts, pretrained_video_model

    return target in (pretrained_video_model, pretrained_experts)
