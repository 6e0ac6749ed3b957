"""Plans from the degrees of parallelism which rank does what: arithmetic without GPU, torch or network.

Ranks are counted with the tensor axis fastest, then context, shard, replicate, pipeline: ranks that communicate most
are closest together.
"""

import math
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.bounds import MAX_RANKS, require_between

Schedule = Literal["1f1b", "interleaved", "zero_bubble"]

#: The axes of a rank's coordinate, slowest first.
AXES = ("pipeline", "replicate", "shard", "context", "tensor")


DEGREES = (
    "tensor", "pipeline", "virtual", "context", "shard", "replicate", "microbatches", "ulysses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where one rank stands on each axis, counted from 0."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """How a training is spread over devices.

    Args:
        tensor: devices that split every large linear between them (Megatron's column and row split).
        sequence: the same devices also split the tokens outside of these linears, which saves activations.
        pipeline: devices that hold one part of the blocks each.
        virtual: parts of the blocks that each pipeline device holds; above 1 for the interleaved and zero-bubble
            schedules.
        context: devices that split the tokens of a sequence, attention included.
        shard: devices that share weights, gradients and optimizer state (FSDP), each with its own samples.
        replicate: copies of all this, each with its own samples.
        microbatches: parts that each device's samples are cut into, one after another: less memory, the same sums.
            A pipeline needs at least as many as it has stages.
        schedule: the order of a pipeline's work; None takes 1f1b, or interleaved where virtual is above 1.
        attention: how context devices attend to each other's tokens: all_gather of keys and values, ring, ulysses
            (all-to-all over heads), or ring_ulysses, where `ulysses` devices of each ring do the latter.
        ulysses: of ring_ulysses, the devices of the all-to-all part.

    Raises:
        ValueError: a degree below 1, or degrees that do not fit together.
    """

    tensor: int = 1
    sequence: bool = False
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    shard: int = 1
    replicate: int = 1
    microbatches: int = 1
    schedule: Schedule | None = None
    attention: Literal["all_gather", "ring", "ulysses", "ring_ulysses"] = "ring"
    ulysses: int = 1

    def __post_init__(self) -> None:
        for name in DEGREES:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"parallel.{name} must be a whole number of at least 1, got {value!r}")
            if value > MAX_RANKS:  # a planner makes some 80,000 plans, so no call where there is nothing to say
                require_between(1, MAX_RANKS, **{f"parallel.{name}": value})
        if self.sequence and self.tensor == 1:
            raise ValueError("parallel.sequence splits tokens over the tensor devices; give parallel.tensor above 1")
        if self.context % self.ulysses:
            raise ValueError(f"parallel.ulysses = {self.ulysses} must divide parallel.context = {self.context}")
        if self.ulysses > 1 and self.attention != "ring_ulysses":
            raise ValueError(f"parallel.ulysses belongs to attention: ring_ulysses; here it is {self.attention}")
        if self.virtual > 1 and self.pipeline == 1:
            raise ValueError(f"parallel.virtual = {self.virtual} needs parallel.pipeline above 1")
        if self.schedule == "1f1b" and self.virtual > 1:
            raise ValueError(f"the 1f1b schedule has one stage a device, not virtual = {self.virtual}; use interleaved")
        if self.schedule in ("interleaved", "zero_bubble") and self.pipeline > 1 and self.virtual == 1:
            raise ValueError(f"the {self.schedule} schedule needs parallel.virtual of at least 2")
        if self.pipeline > 1 and self.microbatches < self.pipeline:
            raise ValueError(
                f"parallel.microbatches = {self.microbatches} is below parallel.pipeline = {self.pipeline} stages: "
                f"some would always be idle. Use at least {self.pipeline}; 4 x {self.pipeline} keeps idle "
                f"time below a fifth"
            )

        rounds = max(1, self.microbatches // self.pipeline)
        if self.virtual > 1 and self.microbatches % rounds:
            raise ValueError(
                f"parallel.microbatches = {self.microbatches} do not divide into {rounds} equal rounds over "
                f"parallel.pipeline = {self.pipeline} devices, as virtual stages need; {self.pipeline * rounds} would"
            )

    @property
    def world(self) -> int:
        """Devices in all: the product of the axes."""
        return math.prod(self.sizes)

    def degrees(self) -> dict[str, int]:
        """The degree of each axis by name, and of virtual stages."""
        return {**dict(zip(AXES, self.sizes, strict=True)), "virtual": self.virtual}

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """The degree of each axis, in the order of `AXES`."""
        return self.pipeline, self.replicate, self.shard, self.context, self.tensor

    @property
    def data(self) -> int:
        """Ranks with samples of their own: replicate x shard."""
        return self.replicate * self.shard

    @property
    def tokens(self) -> int:
        """Parts that a sequence's tokens are cut into outside of attention."""
        return self.context * (self.tensor if self.sequence else 1)

    @property
    def stages(self) -> int:
        """Parts that the blocks are cut into."""
        return self.pipeline * self.virtual

    def coordinate(self, rank: int) -> Coordinate:
        """Where a rank stands. ValueError if there is no such rank."""
        if not 0 <= rank < self.world:
            raise ValueError(f"there is no rank {rank} among {self.world} ({self})")
        places = []
        for size in reversed(self.sizes):
            rank, place = divmod(rank, size)
            places.append(place)
        return Coordinate(*reversed(places))

    def data_rank(self, rank: int) -> int:
        """Which of the `data` slices of a global batch a rank works on."""
        at = self.coordinate(rank)
        return at.replicate * self.shard + at.shard

    def require(self, num_devices: int) -> None:
        """Refuse another number of devices than the plan's."""
        require_world(num_devices, self.world, self.replicate, str(self))

    def __str__(self) -> str:
        parts = [f"{name} {size}" for name, size in zip(AXES, self.sizes, strict=True) if size > 1]
        return " x ".join(parts) or "one device"


def require_world(num_devices: int, world: int, replicate: int, plan: str) -> None:
    """Refuse another number of devices than a plan's."""
    if num_devices == world:
        return
    rest, left = divmod(num_devices * replicate, world)
    fits = f"; parallel.replicate={rest} would use all {num_devices}" if not left and rest else ""
    raise ValueError(f"the plan is for {world} devices ({plan}), but there are {num_devices}{fits}")


def shares(num_blocks: int, num_stages: int) -> list[range]:
    """Which blocks each stage has. Those left over go to the middle first: the ends also embed and give the output."""
    each, over = divmod(num_blocks, num_stages)
    last = num_stages - 1
    order = sorted(range(num_stages), key=lambda stage: (stage == last, stage == 0, stage))
    sizes = [each + (stage in order[:over]) for stage in range(num_stages)]
    ends = [sum(sizes[: stage + 1]) for stage in range(num_stages)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
