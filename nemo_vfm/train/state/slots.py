"""Declares what the slots of a training take: learning-rate schedules and loggers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


@runtime_checkable
class Schedule(Protocol):
    """How the learning rate moves over a run."""

    def factor(self, step: int, total_steps: int | None) -> float:
        """What learning rates are multiplied by at 0-based `step` of `total_steps` (None: not known)."""
        ...


@runtime_checkable
class LoggerSource(Protocol):
    """Opens a Lightning logger inside a run folder. Lightning is imported when a run opens one."""

    def open(self, folder: Path) -> "Logger":
        """The logger; called once a run, and again when a killed run goes on."""
        ...


@runtime_checkable
class LightningLogger(Protocol):
    """A logger of Lightning's making, which writes where its own arguments say; recipes name one under `--trust`."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of a step."""
        ...

    def log_hyperparams(self, params: Mapping[str, object]) -> None:
        """The run's settings."""
        ...

    def finalize(self, status: str) -> None:
        """The end."""
        ...
