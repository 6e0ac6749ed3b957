"""Plans how video sampling is split over devices; needs no GPU, torch or network.

A training plan does not apply: sampling has no microbatches, schedules or pipelines, but can compute the conditional
and the unconditional estimate on two devices. The tensor axis varies fastest, then context, guidance, shard, replicate.
"""

from dataclasses import dataclass
from typing import Literal

from nemo_vfm.parallel.plan.plan import ParallelPlan, require_world

_AXES = ("replicate", "shard", "guidance", "context", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """Parallel degrees of video sampling.

    Args:
        replicate: copies of the whole layout, each with its own prompts.
        shard: devices that share the weights (FSDP), each with its own prompts.
        guidance: 2 computes the conditional and the unconditional estimate on two devices.
        context: devices that split the tokens of a video, attention included.
        tensor: devices that split every large linear (tensor parallelism).
        sequence: the tensor devices also split the tokens outside these linears.
        attention: how context devices exchange keys and values, see `ParallelPlan`.
        ulysses: devices of the all-to-all part of ring_ulysses.
        weights: sharded splits the weights over shard x guidance x context and gathers each block when it runs; whole
            keeps a copy on each of these devices, which is faster if memory allows.
        pipeline: must be 1: sampling one batch would leave all stages but one idle.

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
            raise ValueError(f"parallel.pipeline is {self.pipeline}, but each sampling step needs the previous one, so "
                             f"stages would idle; use parallel.shard, tensor or context")  # fmt: skip
        if type(self.guidance) is not int or self.guidance not in (1, 2):
            raise ValueError(f"parallel.guidance must be 1 or 2 (conditional and unconditional estimate), got "
                             f"{self.guidance!r}")  # fmt: skip
        if self.weights not in ("sharded", "whole"):
            raise ValueError(f"parallel.weights must be sharded or whole, got {self.weights!r}")
        if self.weights == "whole" and self.shard > 1:
            raise ValueError(f"parallel.shard = {self.shard} shards the weights, but parallel.weights is whole; use "
                             f"parallel.replicate = {self.shard}")  # fmt: skip
        self.layout()

    def layout(self) -> ParallelPlan:
        """Return the equivalent training plan, in which guidance ranks are shards or replicas."""
        shared = self.weights == "sharded"
        return ParallelPlan(
            tensor=self.tensor, sequence=self.sequence, context=self.context, attention=self.attention,
            ulysses=self.ulysses, shard=self.shard * self.guidance if shared else 1,
            replicate=self.replicate if shared else self.replicate * self.guidance,
        )  # fmt: skip

    @property
    def is_sharded(self) -> bool:
        """Whether a device keeps only a shard of the weights that it computes with."""
        return self.weights == "sharded" and self.shard * self.guidance * self.context > 1

    @property
    def world(self) -> int:
        """Total number of devices."""
        return self.layout().world

    @property
    def data(self) -> int:
        """Number of data-parallel groups, each with its own prompts: replicate x shard."""
        return self.replicate * self.shard

    @property
    def replica(self) -> int:
        """Number of consecutive ranks that compute the same blocks at the same time."""
        return self.world // self.replicate

    def data_rank(self, rank: int) -> int:
        """Return the index of a rank's data-parallel group."""
        return rank // (self.guidance * self.context * self.tensor)

    def branch(self, rank: int) -> int:
        """Return the index of the estimate that a rank computes."""
        return rank // (self.context * self.tensor) % self.guidance

    def writes(self, rank: int) -> bool:
        """Return whether a rank decodes and writes its group's videos."""
        return rank % (self.guidance * self.context * self.tensor) == 0

    def require(self, num_devices: int) -> None:
        """Refuse another number of devices than the plan's, by a ValueError that names a replicate that fits."""
        require_world(num_devices, self.world, self.replicate, str(self))

    def __str__(self) -> str:
        parts = [f"{name} {getattr(self, name)}" for name in _AXES if getattr(self, name) > 1]
        return " x ".join(parts) or "one device"
