"""Logs to tables of comma-separated values in the run folder."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Csv:
    """`csv/version_<n>/metrics.csv` in the run folder, for spreadsheets; a run that goes on begins a new version."""

    def open(self, folder: Path) -> "Logger":
        """A CSVLogger; it would empty a folder that it finds, so that each part of a run gets one of its own."""
        from lightning.pytorch.loggers import CSVLogger

        return CSVLogger(folder, name="csv", flush_logs_every_n_steps=10)
