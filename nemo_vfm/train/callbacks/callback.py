"""Defines callbacks: objects with any of three hooks, each given the TrainState, or callbacks of Lightning."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nemo_vfm.core.types.json_value import Json

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from nemo_vfm.train.state.train_state import TrainState

HOOKS = ("on_start", "on_step", "on_end")


@runtime_checkable
class Callback(Protocol):
    """Called after every optimizer step. `on_start(fit)` and `on_end(fit)` are called too where a class has them."""

    def on_step(self, fit: "TrainState") -> None:
        """What to do after optimizer step `fit.step`."""
        ...


@runtime_checkable
class LightningCallback(Protocol):
    """A `lightning.pytorch.Callback`; a few of Lightning's own are trusted by name, any other needs `--trust`.

    The engine takes the step, so the hooks around `backward` and `optimizer_step` are not called.
    """

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Json, batch: Json, batch_idx: int
    ) -> None:
        """What to do after a step."""
        ...

    def state_dict(self) -> Json:
        """What a checkpoint keeps of it, where that can be written as JSON."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Json]) -> None:
        """The inverse of `state_dict`."""
        ...
