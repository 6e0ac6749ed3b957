"""Logs to TensorBoard's event files in the run folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.optional import require

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class TensorBoard:
    """Event files under `tensorboard/` of the run folder; look at them with `tensorboard --logdir`."""

    def open(self, folder: Path) -> "Logger":
        """A TensorBoardLogger that writes straight into the folder."""
        require("tensorboard", purpose="The TensorBoard logger")
        from lightning.pytorch.loggers import TensorBoardLogger

        return TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
