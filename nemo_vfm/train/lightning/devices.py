"""Says on how many devices of how many machines a Lightning job works, as Lightning's own words mean it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_vfm.core import ranks
from nemo_vfm.core.device import device, gpu_count
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Needs

Devices = int | Literal["auto"] | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a Lightning job computes.

    Args:
        accelerator: what computes; auto takes a GPU where there is one.
        devices: how many of each machine, or which GPUs by number; auto and -1 take all GPUs, or one CPU process.
        num_nodes: how many machines.

    Raises:
        ValueError: there are no such devices.
    """

    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Devices
    num_nodes: int

    def __post_init__(self) -> None:
        if isinstance(self.devices, int) and self.devices < 1 and self.devices != -1:
            raise ValueError(f"devices must be at least 1, or auto or -1 for all, got {self.devices}")
        if not isinstance(self.devices, int | str):
            if not self.devices or min(self.devices) < 0 or len({*self.devices}) < len(self.devices):
                raise ValueError(f"devices as a list must be different GPUs, such as [0, 1], got {list(self.devices)}")
            if self.accelerator == "cpu":
                raise ValueError("devices as a list means GPUs, but accelerator is cpu; give a number")
        if self.num_nodes < 1:
            raise ValueError(f"num_nodes must be at least 1, got {self.num_nodes}")

    @property
    def takes_all(self) -> bool:
        """Whether the machine decides how many."""
        return self.devices in ("auto", -1)

    def per_node(self) -> int:
        """Processes of a machine. Where others have started them, there are as many as these."""
        if not self.takes_all:
            return self.devices if isinstance(self.devices, int) else len(self.devices)
        if ranks.is_given():
            return max(1, ranks.count() // self.num_nodes)
        return 1 if self.accelerator == "cpu" else max(1, gpu_count())

    def num_ranks(self) -> int:
        """Processes on all machines."""
        return self.per_node() * self.num_nodes

    def for_trainer(self) -> tuple[Literal["cpu", "gpu"], int | list[int]]:
        """`accelerator` and `devices` of the Trainer. UserError if there is no GPU, or not the one asked for."""
        has_gpu = device().type == "cuda"
        if self.accelerator == "gpu" and not has_gpu:
            raise UserError("accelerator is gpu, but there is no GPU here; set accelerator=cpu")
        if self.accelerator == "cpu" or not has_gpu:
            return "cpu", self.per_node()
        if not isinstance(self.devices, int | str):
            if max(self.devices) >= gpu_count():
                raise UserError(f"devices asks for GPU {max(self.devices)}, but this machine has GPUs 0 to "
                                f"{gpu_count() - 1}")  # fmt: skip
            return "gpu", list(self.devices)
        # One process alone may have been told another GPU than the first.
        return "gpu", [device().index or 0] if self.num_ranks() == 1 else self.per_node()


class PlacedJob:
    """A job that computes where its `placement` says."""

    placement: Placement

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        placed = self.placement
        whole = placed.num_nodes if placed.takes_all and placed.accelerator != "cpu" else 0
        return Needs(ranks=placed.num_ranks(), whole_nodes=whole)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        per_node, nodes = self.placement.per_node(), self.placement.num_nodes
        if num_ranks != per_node * nodes:
            raise ValueError(f"devices ({per_node}) x num_nodes ({nodes}) is {per_node * nodes}, but {num_ranks} "
                             f"processes were started")  # fmt: skip


@contextmanager
def single_process() -> Iterator[None]:
    """Let this process be the only one inside the block.

    The other ranks of a workflow wait for its next step. Whoever asks torch or the environment how many there are, as
    torchmetrics does, would wait for them.
    """
    import torch.distributed as dist  # recipes that are only checked do without it

    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    group, before = dist.group.WORLD, {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    dist.group.WORLD = None
    os.environ.update(RANK="0", WORLD_SIZE="1")
    try:
        yield
    finally:
        dist.group.WORLD = group
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
        os.environ.update(before)
