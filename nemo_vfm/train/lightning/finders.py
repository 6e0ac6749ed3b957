"""Tells when Lightning's finders of a learning rate or a batch size search, and what they have found."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_hasattr, lightning_setattr


def is_search(trainer: Trainer, callback: Callback) -> bool:
    """Whether a finder tries the loops: then it has put callbacks of its own in the place of the run's."""
    return callback not in trainer.callbacks  # type: ignore[attr-defined]


def finders(trainer: Trainer) -> list[Callback]:
    """Those of the run."""
    return [one for one in trainer.callbacks if isinstance(one, LearningRateFinder | BatchSizeFinder)]  # type: ignore[attr-defined]


def found(trainer: Trainer) -> dict[str, Any]:
    """The attributes of the module or its data that they set, by name."""
    module, values = trainer.lightning_module, {}
    for one in finders(trainer):
        own = one._batch_arg_name if isinstance(one, BatchSizeFinder) else one._attr_name  # type: ignore[attr-defined]
        for name in [own] if own else ["lr", "learning_rate"]:
            if lightning_hasattr(module, name):
                values[name] = lightning_getattr(module, name)
    return values


def set_found(trainer: Trainer, values: Mapping[str, Any]) -> None:
    """As they were."""
    for name, value in values.items():
        lightning_setattr(trainer.lightning_module, name, value)
