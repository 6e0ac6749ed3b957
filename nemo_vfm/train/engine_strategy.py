"""Tells Lightning which ranks and devices there are, and lets it move nothing: the engine has placed all of it."""

import json
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from nemo_vfm.core import ranks
from nemo_vfm.core.device import device
from nemo_vfm.parallel.ranks import process_group


class EngineStrategy(SingleDeviceStrategy):
    """The ranks are as they are, and callbacks may ask them; model and optimizer stay where they lie."""

    def __init__(self) -> None:
        super().__init__(device())
        self.global_rank, self.local_rank, self.world_size = ranks.rank(), ranks.local_rank(), ranks.count()

    @property
    def is_global_zero(self) -> bool:
        """Whether this rank writes what there is only one of."""
        return ranks.is_first()

    def setup(self, trainer: Trainer) -> None:
        """Take the engine's optimizer. Lightning would move its state to the device, where it may not belong."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)

    def model_to_device(self) -> None:
        """It is there."""

    def teardown(self) -> None:
        """Lightning would move the model to the CPU, although others go on with it."""
        assert self.accelerator is not None
        self.accelerator.teardown()

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks."""
        process_group.all_reduce_max(0.0)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """One rank's object on every rank, as JSON: nothing that would be unpickled."""
        return json.loads(process_group.everyone_says(json.dumps(obj))[src])

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or the sum over all ranks."""
        if not isinstance(tensor, Tensor):
            return tensor
        everyone = self.all_gather(tensor).reshape(-1, *tensor.shape)
        return everyone.sum(0) if str(reduce_op).lower() == "sum" else everyone.to(torch.get_default_dtype()).mean(0)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Every rank's numbers, stacked where there are several ranks; without gradients."""
        rows = process_group.everyone_says(json.dumps(tensor.detach().cpu().double().tolist()))
        found = [torch.tensor(json.loads(row), dtype=tensor.dtype, device=tensor.device) for row in rows]
        return torch.stack(found) if len(found) > 1 else tensor


class EngineEnvironment(LightningEnvironment):
    """Lightning starts no processes: which others there are is the engine's business, and torchrun's names stay set."""

    @property
    def creates_processes_externally(self) -> bool:
        """They are there."""
        return True

    def teardown(self) -> None:
        """Leave the environment as it is."""
