"""Reads a NeMo YAML file with changes, and compares the settings with those the run began with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.json_value import Json

if TYPE_CHECKING:
    from omegaconf import DictConfig

SECTIONS = ("trainer", "model")
BEGAN = "nemo-settings.json"  #: what the run began with
# How long, how watched and how often saved: a run may go on with other values. The rest makes it another run.
_HARMLESS = ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.log_every_n_steps",
             "trainer.enable_progress_bar", "trainer.devices", "trainer.num_nodes", "exp_manager.")  # fmt: skip


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
    _require_whole(file, found)
    OmegaConf.set_struct(found, False)
    return found


def _require_whole(file: Path, found: "DictConfig") -> None:
    if missing := [name for name in SECTIONS if name not in found]:
        raise UserError(f"{file} has no section {missing[0]!r}; a NeMo configuration has {' and '.join(SECTIONS)}")
    if found.get("init_from_pretrained_model"):
        raise UserError(f"{file} names a model that NeMo would download (init_from_pretrained_model); nothing is "
                        "downloaded here: supply its archive, and name it as init_from_nemo_model")  # fmt: skip
    if [entry for entry in found.get("defaults") or [] if entry != "_self_"]:
        raise UserError(f"{file} includes other files (defaults); resolve it with hydra's --cfg job first")


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
