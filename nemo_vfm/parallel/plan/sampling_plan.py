# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Plans how the drawing of videos is spread over devices: arithmetic without GPU, torch or network.

A training's plan does not fit. Microbatches, schedules and pipelines have no use here, and two estimates of one video,
with and without its text, can be two devices' work. Ranks are counted with the tensor axis fastest, then context,
guidance, shard, replicate.
"""

from dataclasses import dataclass
from typing import Literal

from nemo_vfm.parallel.plan.plan import ParallelPlan

_AXES = ("replicate", "shard", "guidance", "context", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How the drawing of videos is spread over devices.

    Args:
        replicate: copies of all this, each with its own prompts.
        shard: devices that share the weights (FSDP), each with its own prompts.
        guidance: 2 gives the estimate with the text to one device and the one without it to another.
        context: devices that split the tokens of a video, attention included.
        tensor: devices that split every large linear between them.
        sequence: the tensor devices also split the tokens outside of these linears.
        attention: how context devices attend to each other's tokens, see `ParallelPlan`.
        ulysses: of ring_ulysses, the devices of the all-to-all part.
        weights: sharded spreads the weights over shard x guidance x context, and each block is gathered when its turn
            comes; whole keeps them on each of these devices, which is faster where there is room.
        pipeline: must be 1: one video at a time would leave all stages but one idle.

    Raises:
        ValueError: a degree below 1, or degrees that do not fit together.
    """

    replicate: int = 1
    shard: int = 1
    guidance: int = 1
    context: int = 1
    tensor: int = 1
    sequence: bool = False
    attention: Literal["all_gather", "ring", "ulysses", "ring_ulysses"] = "ring"
    ulysses: int = 1
    weights: Literal["sharded", "whole"] = "sharded"
    pipeline: int = 1

    def __post_init__(self) -> None:
        if self.pipeline != 1:
            raise ValueError(f"parallel.pipeline is {self.pipeline}, but a step of sampling needs the one before, so "
                             f"stages would wait for each other; use parallel.shard, tensor or context")  # fmt: skip
        if type(self.guidance) is not int or self.guidance not in (1, 2):
            raise ValueError(f"parallel.guidance must be 1 or 2, the estimates with and without the text, got "
                             f"{self.guidance!r}")  # fmt: skip
        if self.weights not in ("sharded", "whole"):
            raise ValueError(f"parallel.weights must be sharded or whole, got {self.weights!r}")
        if self.weights == "whole" and self.shard > 1:
            raise ValueError(f"parallel.shard = {self.shard} shares the weights, and parallel.weights is whole; use "
                             f"parallel.replicate = {self.shard}")  # fmt: skip
        self.layout()

    def layout(self) -> ParallelPlan:
        """The same ranks as a training's plan names them: those of guidance share weights, or are copies."""
        shared = self.weights == "sharded"
        return ParallelPlan(
            tensor=self.tensor, sequence=self.sequence, context=self.context, attention=self.attention,
            ulysses=self.ulysses, shard=self.shard * self.guidance if shared else 1,
            replicate=self.replicate if shared else self.replicate * self.guidance,
        )  # fmt: skip

    @property
    def is_sharded(self) -> bool:
        """Whether a device keeps a part of the weights that it computes with."""
        return self.weights == "sharded" and self.shard * self.guidance * self.context > 1

    @property
    def world(self) -> int:
        """Devices in all."""
        return self.layout().world

    @property
    def data(self) -> int:
        """Groups of ranks with prompts of their own: replicate x shard."""
        return self.replicate * self.shard

    @property
    def replica(self) -> int:
        """Ranks in a row that compute the same blocks at the same time."""
        return self.world // self.replicate

    def data_rank(self, rank: int) -> int:
        """Which of the `data` groups a rank belongs to."""
        return rank // (self.guidance * self.context * self.tensor)

    def branch(self, rank: int) -> int:
        """Which of the `guidance` estimates a rank makes."""
        return rank // (self.context * self.tensor) % self.guidance

    def writes(self, rank: int) -> bool:
        """Whether a rank is the one of its group that decodes videos and writes them."""
        return rank % (self.guidance * self.context * self.tensor) == 0

    def require(self, num_devices: int) -> None:
        """Refuse another number of devices than the plan's.

        Raises:
            ValueError: with the product, its factors, and what would fit.
        """
        if num_devices == self.world:
            return
        rest, left = divmod(num_devices * self.replicate, self.world)
        fits = f"; parallel.replicate={rest} would use all {num_devices}" if not left and rest else ""
        raise ValueError(f"the plan is for {self.world} devices ({self}), but there are {num_devices}{fits}")

    def __str__(self) -> str:
        parts = [f"{name} {getattr(self, name)}" for name in _AXES if getattr(self, name) > 1]
        return " x ".join(parts) or "one device"
