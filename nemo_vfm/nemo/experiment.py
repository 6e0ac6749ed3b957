"""Trains a NeMo 3.0 model class by its configuration inside the run folder, and writes a `.nemo` archive.

NeMo builds whatever its YAML names in `_target_`, and reads its own checkpoints with pickle. So trust in our package
does not cover this code. `--trust nemo` means that the user trusts the YAML file, the model's class and the checkpoints
in the run folder.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.storage.files import atomic_path, read_json, write_json
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Needs, Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.nemo.exp_manager import Bookkeeping, inside

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from omegaconf import DictConfig

ARCHIVE = "model.nemo"
Scalar = int | float | str | bool | None
SECTIONS = ("trainer", "model")
BEGAN = "nemo-settings.json"  #: what the run began with
# How long, how watched and how often saved: a run may go on with other values. The rest makes it another run.
_HARMLESS = ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.log_every_n_steps",
             "trainer.enable_progress_bar", "trainer.devices", "trainer.num_nodes", "exp_manager.")  # fmt: skip


@runtime_checkable
class ModelSection(Protocol):
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
        self, *, config: Path, model: Factory[[ModelSection, Trainer], NeMoModel], duration: Duration | None = None,
        changes: Mapping[str, Scalar] | None = None, exp_manager: Bookkeeping | None = None,
    ) -> None:  # fmt: skip
        self.changes = {**(changes or {}), **length(duration)}
        self.config, self.model, self.exp_manager = config, model, exp_manager

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        return Needs(engine="torch", any_nodes=True)

    def run(self, run: Run) -> Outcome:
        """Train; go on from NeMo's last checkpoint where the folder has one."""
        manager = require("nemo.utils.exp_manager", purpose="NeMoExperiment")
        import lightning.pytorch as pl
        from omegaconf import OmegaConf

        from nemo_vfm.nemo.metrics_reader import WriteNemoMetrics

        settings = read_settings(self.config, self.changes)
        section = self.exp_manager.section() if self.exp_manager else settings.get("exp_manager") or {}
        plain = section if isinstance(section, dict) else OmegaConf.to_container(section, resolve=True)
        settings.exp_manager = inside(plain, run.folder.absolute())  # type: ignore[arg-type]
        compare(run.folder, OmegaConf.to_container(settings, resolve=False))  # type: ignore[arg-type]
        pl.seed_everything(run.seed % 2**32, workers=True, verbose=False)
        # Lightning's trainer by the file's section. NeMo attaches loggers and checkpoints itself.
        os.environ.setdefault("WANDB_MODE", "offline")
        utils = require("nemo.utils.trainer_utils", purpose="NeMoExperiment")
        given = dict(utils.resolve_trainer_cfg(settings.trainer))
        own = {"logger": False, "enable_checkpointing": False, "default_root_dir": str(run.folder)}
        for key in own.keys() & given.keys():
            if given[key] not in (own[key], None):
                log.warn(f"trainer.{key}: {given[key]} is not used: the run folder keeps loggers and checkpoints")
        callbacks = [*(given.pop("callbacks", None) or []), WriteNemoMetrics(run.folder)]
        trainer = pl.Trainer(**{**given, **own, "callbacks": callbacks})
        manager.exp_manager(trainer, settings.exp_manager)
        model = self.model(settings.model, trainer)
        model.maybe_init_from_pretrained_checkpoint(settings)
        trainer.fit(model)  # type: ignore[arg-type]
        return _outcome(model, trainer, run.folder)


def _outcome(model: NeMoModel, trainer: "pl.Trainer", folder: Path) -> Outcome:
    """Write the archive, and say how far it came."""
    if trainer.is_global_zero:
        with atomic_path(folder / ARCHIVE) as temporary:
            model.save_to(str(temporary))
    figures = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
    finite = {name: value for name, value in figures.items() if math.isfinite(value)}  # JSON knows no others
    steps = trainer.global_step
    return Outcome(f"NeMo trained to step {steps}; the model is {folder / ARCHIVE}", {"steps": steps, **finite})


def read_settings(file: Path, changes: Mapping[str, Json]) -> "DictConfig":
    """The file with changes to it, as NeMo's own scripts get it.

    Args:
        changes: dotted address in the file -> value.

    Raises:
        UserError: it cannot be read, lacks a section, takes parts from other files, or a change names nothing.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        found = OmegaConf.load(file)
        if not isinstance(found, DictConfig):
            raise UserError(f"{file} is not a mapping; a NeMo configuration has {' and '.join(SECTIONS)} at its root")
        OmegaConf.set_struct(found, True)  # a change to what is not there is a misspelling
        for address, value in changes.items():
            OmegaConf.update(found, address, value, force_add=address.startswith(("trainer.", "exp_manager.")))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{file}: {error}") from error
    if missing := [name for name in SECTIONS if name not in found]:
        raise UserError(f"{file} has no section {missing[0]!r}; a NeMo configuration has {' and '.join(SECTIONS)}")
    if found.get("init_from_pretrained_model"):
        raise UserError(f"{file} names a model that NeMo would download (init_from_pretrained_model); nothing is "
                        "downloaded here: supply its archive, and name it as init_from_nemo_model")  # fmt: skip
    if [entry for entry in found.get("defaults") or [] if entry != "_self_"]:
        raise UserError(f"{file} includes other files (defaults); resolve it with hydra's --cfg job first")
    OmegaConf.set_struct(found, False)
    return found


def length(duration: Duration | None) -> dict[str, Json]:
    """Changes that make a run so long; none leaves it to the file.

    Raises:
        ValueError: the unit is none that Lightning counts in.
    """
    if duration is None:
        return {}
    if duration.unit == "steps":
        return {"trainer.max_steps": int(duration.amount), "trainer.max_epochs": -1}
    if duration.unit == "epochs":
        return {"trainer.max_epochs": int(duration.amount), "trainer.max_steps": -1}
    raise ValueError(f"the length of a NeMo run must be in steps or epochs, got {duration}")


def compare(folder: Path, now: Mapping[str, Json]) -> None:
    """Keep the settings of a run that begins; refuse to go on with others.

    Raises:
        RunFolderError: something differs that makes it another run.
    """
    file = folder / BEGAN
    if not file.is_file():
        write_json(file, now)
        return
    before, after = dict(_flat(read_json(file))), dict(_flat(now))
    differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if serious := [key for key in differing if not key.startswith(_HARMLESS)]:
        key = serious[0]
        more = f" (and {len(serious) - 1} more differ)" if len(serious) > 1 else ""
        raise RunFolderError(
            f"{folder} was started with {key}: {before.get(key)}, now it is {after.get(key)}{more}; choose "
            f"another run_dir"
        )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
