# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens a Lightning logger for a run folder; Lightning is imported only then."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


@runtime_checkable
class LoggerSource(Protocol):
    """Opens a Lightning logger inside a run folder."""

    def open(self, folder: Path) -> "Logger":
        """The logger; called once a run, and again when a killed run goes on."""
        ...
