"""Tells Lightning which process this is, and reads its checkpoints without running what is in them."""

import logging
import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.train.lightning.checkpoint_values import first_unreadable, foreign_classes, read


def silence_warnings() -> None:
    """Leave out what Lightning says about what we do on purpose, and its advertisements."""
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.WARNING)
    # Loaders are put where they were, see `ExactResume`; tasks of srun are adopted as ranks.
    warnings.filterwarnings("ignore", message=r"You're resuming from a checkpoint that ended before the epoch ended")
    # A test needs none of the training's callbacks.
    warnings.filterwarnings("ignore", message=r"Be aware that when using `ckpt_path`, callbacks used to create")
    warnings.filterwarnings("ignore", message=r"The `srun` command is available on your system")
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")  # its own, under torch 2.13


class RunEnvironment(LightningEnvironment):
    """The ranks that our command, torchrun or srun have started; Lightning starts none.

    Args:
        devices: processes of each machine.
    """

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.devices = devices

    @property
    def creates_processes_externally(self) -> bool:
        """They are there."""
        return True

    def world_size(self) -> int:
        """See `ranks.count`."""
        return ranks.count()

    def global_rank(self) -> int:
        """See `ranks.rank`."""
        return ranks.rank()

    def local_rank(self) -> int:
        """See `ranks.local_rank`."""
        return ranks.local_rank()

    def node_rank(self) -> int:
        """The machine's number."""
        return ranks.rank() // self.devices

    def teardown(self) -> None:
        """Leave the environment as it is."""


class OwnCheckpoints(TorchCheckpointIO):
    """Reads checkpoints of one run folder, and of these tensors and plain values alone; the first that is written, too.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self._was_read_back = folder, False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write one. The first is read back: one that cannot be read should be found now, not when it is needed.

        Raises:
            UserError: it holds objects of other classes; it is gone again.
        """
        try:
            super().save_checkpoint(checkpoint, path, storage_options)
            if not self._was_read_back:  # in no more memory than Lightning has taken to write it
                read(Path(path))
            self._was_read_back = True
        except OSError:
            raise
        except Exception as error:
            if (found := first_unreadable(checkpoint)) is None:
                raise
            Path(path).unlink(missing_ok=True)
            raise UserError(
                f"the checkpoint would hold {found}, which cannot be read back: checkpoints hold tensors, numbers, "
                f"texts, and lists and mappings of these; look for the on_save_checkpoint or state_dict"
            ) from error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read one. UserError if it lies elsewhere, or holds objects of other classes."""
        if not Path(path).resolve().is_relative_to(self.folder.resolve()):
            raise UserError(f"{path} is outside of {self.folder}: only checkpoints of the run's own folder are read")
        try:
            found: dict[str, Any] = read(Path(path))
        except Exception as error:
            if type(error).__name__ != "UnpicklingError":
                raise
            names = ", ".join(foreign_classes(Path(path))[:5])
            raise UserError(f"{path} holds more than tensors and plain values ({names}), so it is not read; start in "
                            f"another folder, or from a checkpoint before it") from error  # fmt: skip
        return found
