"""Keeps what Lightning's callbacks log until the step's line of metrics.jsonl is written, which every logger gets."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger

from nemo_vfm.train.loggers.guard import GuardedLogger


class RunLogger(Logger):
    """The one logger that Lightning sees, on every rank; some callbacks refuse to work without any.

    Args:
        loggers: those of the recipe.
    """

    def __init__(self, loggers: Sequence[GuardedLogger]) -> None:
        super().__init__()
        self.loggers = loggers
        self._kept: dict[str, float] = {}

    @property
    def name(self) -> str:
        """As little as a logger may say."""
        return "nemo_vfm"

    @property
    def version(self) -> None:
        """Runs are told apart by their folders."""

    @property
    def experiment(self) -> Any:
        """The first tracker's own object; where there is none, one that takes any call and does nothing."""
        return self.loggers[0].experiment if self.loggers else DummyLogger().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep them; Lightning's count of epochs is none of ours."""
        self._kept |= {name: float(value) for name, value in metrics.items() if name != "epoch"}

    def take(self) -> dict[str, float]:
        """What was kept since the last time."""
        kept, self._kept = self._kept, {}
        return kept

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the recipe was told already."""

    def save(self) -> None:
        """Write what waits."""
        for logger in self.loggers:
            logger.save()

    def finalize(self, status: str) -> None:
        """The end."""
        for logger in self.loggers:
            logger.finalize(status)
