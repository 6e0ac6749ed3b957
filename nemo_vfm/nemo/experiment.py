"""Trains a NeMo 3.0 model class by its configuration inside the run folder, and writes a `.nemo` archive.

NeMo builds whatever its YAML names in `_target_`, and reads its own checkpoints with pickle. So trust in our package
does not cover this code. `--trust nemo` means that the user trusts the YAML file, the model's class and the checkpoints
in the run folder.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Needs, Outcome, Run
from nemo_vfm.nemo.exp_manager import Bookkeeping, inside
from nemo_vfm.nemo.nemo_settings import compare, length, read_settings

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from omegaconf import DictConfig

ARCHIVE = "model.nemo"
Scalar = int | float | str | bool | None


@runtime_checkable
class Settings(Protocol):
    """The `model` section, as OmegaConf reads it."""

    def get(self, key: str) -> object:
        """The value of a key."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Lightning's trainer."""

    def fit(self, model: "pl.LightningModule") -> None:
        """Train."""
        ...


@runtime_checkable
class NeMoModel(Protocol):
    """A class derived from NeMo's ModelPT."""

    def save_to(self, save_path: str) -> None:
        """Write a .nemo archive."""
        ...

    def maybe_init_from_pretrained_checkpoint(self, cfg: "DictConfig") -> None:
        """Start from other weights, where the configuration says so."""
        ...


@needs_gpu()
@needs_packages("nemo")
class NeMoExperiment:
    """Trains any model of nemo-toolkit 3.0 by its own YAML; needs `--trust nemo` and the extra `nemo`.

    Args:
        config: NeMo's YAML file, with the sections `trainer`, `model` and, if you like, `exp_manager`.
        model: the class, such as nemo.collections.asr.models.EncDecCTCModel; it gets the section and the trainer.
        duration: how long, in steps or epochs; None leaves it to the file.
        changes: dotted address in the file -> another value.
        exp_manager: takes the place of the file's section; None keeps that.
    """

    def __init__(
        self, *, config: Path, model: Factory[[Settings, Trainer], NeMoModel], duration: Duration | None = None,
        changes: Mapping[str, Scalar] | None = None, exp_manager: Bookkeeping | None = None,
    ) -> None:  # fmt: skip
        self.changes = {**(changes or {}), **length(duration)}
        self.config, self.model, self.exp_manager = config, model, exp_manager

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        return Needs(engine="torch")

    def run(self, run: Run) -> Outcome:
        """Train; go on from NeMo's last checkpoint where the folder has one."""
        manager = require("nemo.utils.exp_manager", purpose="NeMoExperiment")
        from lightning.pytorch import seed_everything

        settings = self._settings(run)
        seed_everything(run.seed % 2**32, workers=True, verbose=False)
        trainer = _trainer(settings, run.folder)
        manager.exp_manager(trainer, settings.exp_manager)
        model = self.model(settings.model, trainer)
        model.maybe_init_from_pretrained_checkpoint(settings)
        trainer.fit(model)  # type: ignore[arg-type]
        return _outcome(model, trainer, run.folder)

    def _settings(self, run: Run) -> "DictConfig":
        """The file's settings, with every folder inside the run's."""
        from omegaconf import OmegaConf

        settings = read_settings(self.config, self.changes)
        section = self.exp_manager.section() if self.exp_manager else settings.get("exp_manager") or {}
        plain = section if isinstance(section, dict) else OmegaConf.to_container(section, resolve=True)
        settings.exp_manager = inside(plain, run.folder.absolute())  # type: ignore[arg-type]
        compare(run.folder, OmegaConf.to_container(settings, resolve=False))  # type: ignore[arg-type]
        return settings


def _trainer(settings: "DictConfig", folder: Path) -> "pl.Trainer":
    """Lightning's trainer by the file's section. NeMo attaches loggers and checkpoints itself."""
    import lightning.pytorch as pl

    from nemo_vfm.nemo.metrics_reader import WriteMetrics

    os.environ.setdefault("WANDB_MODE", "offline")
    given = dict(require("nemo.utils.trainer_utils", purpose="NeMoExperiment").resolve_trainer_cfg(settings.trainer))
    own = {"logger": False, "enable_checkpointing": False, "default_root_dir": str(folder)}
    for key in own.keys() & given.keys():
        if given[key] not in (own[key], None):
            log.warn(f"trainer.{key}: {given[key]} is not used: the run folder keeps loggers and checkpoints")
    callbacks = [*(given.pop("callbacks", None) or []), WriteMetrics(folder)]
    return pl.Trainer(**{**given, **own, "callbacks": callbacks})


def _outcome(model: NeMoModel, trainer: "pl.Trainer", folder: Path) -> Outcome:
    """Write the archive, and say how far it came."""
    if trainer.is_global_zero:
        with atomic_path(folder / ARCHIVE) as temporary:
            model.save_to(str(temporary))
    figures = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
    finite = {name: value for name, value in figures.items() if math.isfinite(value)}  # JSON knows no others
    steps = trainer.global_step
    return Outcome(f"NeMo trained to step {steps}; the model is {folder / ARCHIVE}", {"steps": steps, **finite})
