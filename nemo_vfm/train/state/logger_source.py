"""Defines what may be a logger: our source that opens one in the run folder, or a Lightning logger."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


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
