"""Turns a configuration of LightningCLI (`class_path` and `init_args`) into a recipe of `LightningFit`."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache

from nemo_vfm.cli.migrate.draft import UNKNOWN, Format, RecipeDraft
from nemo_vfm.cli.migrate.foreign_yaml import Key, Value
from nemo_vfm.config import DEFAULT_TRUST
from nemo_vfm.core.errors import UserError

#: Section of theirs -> where it stands here, and the package of a class that is named without one.
_SECTIONS = {
    "model": ("module", ""), "data": ("data", ""), "optimizer": ("optimizer", "torch.optim"),
    "lr_scheduler": ("lr_scheduler", "torch.optim.lr_scheduler"),
    "trainer.strategy": ("strategy", "lightning.pytorch.strategies"),
}  # fmt: skip
_BESIDE = {"accelerator": str, "devices": int, "num_nodes": int, "strategy": str}  # the trainer's, and above it here
_PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_LOGGERS = {
    "TensorBoardLogger": ("tensorboard", "TensorBoard", ()), "CSVLogger": ("csv", "Csv", ()),
    "WandbLogger": ("wandb", "WeightsAndBiases", ("project", "name", "entity")),
}  # fmt: skip
_LEFT = {
    "trainer.callbacks": "there are none",
    "trainer.devices": "devices=N sets their number",
    "trainer.logger": "metrics.jsonl is always written; loggers are listed under loggers, by name",
    "trainer.default_root_dir": "the run folder: run_dir=DIR",
    "trainer.enable_checkpointing": "checkpoints are always written: every_steps, keep_last",
    "trainer.plugins": "the run decides how ranks meet and how checkpoints are read",
    "trainer.barebones": "it would leave out checkpoints and metrics, which a run folder exists for",
}
_CALLBACKS = "lightning.pytorch.callbacks"
_OTHER_COMMANDS = ("validate", "test", "predict")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)
_HOME = re.compile(r"(torch\.optim|lightning\.pytorch\.(?:callbacks|loggers|strategies))\.[a-z_]+\.([A-Z]\w*)")


@dataclass(frozen=True, slots=True)
class _Format(Format):
    """Its keys are those of the classes that it names, so each says what nothing else does."""

    taken: "dict[str, str]" = field(default_factory=dict)
    left: "dict[str, str]" = field(default_factory=dict)

    def fact(self, path: str) -> str:
        """See `Format`."""
        return path


LIGHTNING_CLI = _Format(name="lightning-cli", title="LightningCLI")


def is_lightning_cli(keys: Sequence[Key]) -> bool:
    """Whether a file is a configuration of LightningCLI."""
    parts = [key.path.split(".") for key in keys]
    return any(path[-1] == "class_path" or "seed_everything" in path[:2] for path in parts)


def lightning_cli(keys: Sequence[Key]) -> RecipeDraft:
    """The recipe, and the fate of each key."""
    draft = RecipeDraft(
        {key.path: key.value for key in keys}, "lightning", {"_target_": "nemo_vfm.train.lightning_fit.LightningFit"}
    )
    if all(key.path.partition(".")[0] in ("fit", *_OTHER_COMMANDS) for key in keys):
        keys_of_fit = [(key, key.path.removeprefix("fit.")) for key in keys]
    else:
        keys_of_fit = [(key, key.path) for key in keys]
    classes = {path.removesuffix(".class_path"): key.value for key, path in keys_of_fit if path.endswith(".class_path")}
    listed = {path: key.value for key, path in keys_of_fit if re.fullmatch(r"trainer\.callbacks\.\d+", path)}
    names = _names_of_callbacks(classes | listed)
    for key, path in keys_of_fit:
        _take(draft, key, path, classes, names)
    # What LightningCLI's program or Lightning itself says where the file says nothing.
    for section, (where, _) in _SECTIONS.items():
        given = any(address.startswith(f"{where}.") for address in draft.values)
        if (given or section == "model") and f"{where}._target_" not in draft.values:
            draft.put(f"{where}._target_", "???", "the class is named by the program that calls LightningCLI")
    if "trainer.max_epochs" not in draft.values:
        has_time = any(address.startswith("trainer.max_time") for address in draft.values)
        is_ended = has_time or draft.values.get("trainer.max_steps", -1) != -1
        draft.put("trainer.max_epochs", -1 if is_ended else 1000, "as in Lightning")
    for address in draft.values:
        parts = address.split(".")
        if found := next((one for i in range(1, len(parts)) if (one := ".".join(parts[:i])) in draft.values), ""):
            raise UserError(f"{found} of the recipe would be a value and a mapping with {parts[-1]}; keep one of them")
    return draft


def _take(draft: RecipeDraft, key: Key, path: str, classes: dict[str, Value], names: dict[str, str]) -> None:
    """Decide what becomes of one key."""
    top, _, rest = path.partition(".")
    parts = path.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    callback = next((one for one in prefixes if one in names), "")
    section = next((one for one in _SECTIONS if path.startswith(f"{one}.")), "")
    if key.secret:
        draft.leave(key.path, LIGHTNING_CLI.reason(key))
    elif path in _SECTIONS and top != "trainer" and isinstance(key.value, str):
        _component(draft, key, f"{path}.class_path", path, *_SECTIONS[path], classes)
    elif top in _OTHER_COMMANDS:
        draft.leave(key.path, "a recipe of LightningFit trains")
    elif callback:
        written = f"{path}.class_path" if path == callback else path
        _component(draft, key, written, callback, f"callbacks.{names[callback]}", _CALLBACKS, classes)
    elif section:
        where, package = _SECTIONS[section]
        _component(draft, key, path, section, where, package, classes)
    elif path == "trainer.callbacks" and key.value and isinstance(key.value, tuple):
        for name, text in _names_of_callbacks({f"{path}.{i}": text for i, text in enumerate(key.value)}).items():
            found = _class(str(key.value[int(name.rpartition(".")[2])]), _CALLBACKS)
            draft.change(key.path, f"callbacks.{text}._target_", found, "by name")
    elif path.startswith("trainer.logger."):
        _logger(draft, key, path, classes)
    elif top == "seed_everything":
        if isinstance(key.value, int) and not isinstance(key.value, bool):
            draft.carry(key.path, "seed")
            draft.put("initial_seed", key.value, "the weights that LightningCLI begins with")
        elif key.value is True:
            draft.change(key.path, "seed", 0, "random at each start in the original, fixed here")
        else:
            draft.leave(key.path, "a run always has a seed")
    elif top == "ckpt_path" and key.value in ("best", "hpc", "last", "registry"):  # words of Lightning's, no paths
        draft.leave(key.path, "the run resumes from its own folder's newest checkpoint by itself")
    elif top == "ckpt_path" and isinstance(key.value, str):
        draft.change(key.path, "start_from", key.value, "weights alone: a run resumes from its own folder")
        draft.differ("ckpt_path resumes there, with optimizer and epoch; here the run begins with its weights")
    elif key.value is None and path != "trainer.check_val_every_n_epoch":
        draft.leave(key.path, "null, which changes nothing")
    elif top == "trainer":
        _option(draft, key, rest)
    else:
        draft.leave(key.path, UNKNOWN)


def _component(
    draft: RecipeDraft, key: Key, path: str, section: str, where: str, package: str, classes: dict[str, Value]
) -> None:
    """A class or an argument of one: `class_path` is `_target_`, and `init_args` stand beside it."""
    kept, above = [where], section
    for part in path[len(section) + 1 :].split("."):
        if not (part in ("init_args", "dict_kwargs") and above in classes):
            kept.append(part)
        above = f"{above}.{part}"
    if kept[-1] != "class_path":
        address = ".".join(kept)
        if key.is_mapping and address == where:
            draft.agree(key.path, where, "no arguments")
        elif key.is_mapping or address in draft.values:
            why = "an empty mapping: there is nothing to carry over" if key.is_mapping else "given twice"
            draft.leave(key.path, why)
        elif "${" in str(key.value):
            draft.change(key.path, address, "???", "a reference that another program fills in: give the value")
        else:
            draft.carry(key.path, address)
        return
    address, name = ".".join([*kept[:-1], "_target_"]), str(key.value)
    found = _class(name, package)
    if found == name:
        draft.carry(key.path, address)
    elif found == "???":
        draft.change(key.path, address, found, "its module is not named: give the dotted name")
    else:
        draft.change(key.path, address, found, "the same class under the name that recipes use")
    if len(kept) > 2 and found.startswith(("torch.optim.", "lightning.pytorch.cli.")):
        draft.put(".".join([*kept[:-1], "_partial_"]), True, "the module calls it")


def _class(name: str, package: str) -> str:
    """The dotted name that recipes know a class by; `???` where its module is not said."""
    if "." not in name:
        if name == "ReduceLROnPlateau":
            return "lightning.pytorch.cli.ReduceLROnPlateau"
        return f"{package}.{name}" if package else "???"
    name = re.sub(r"^pytorch_lightning\.", "lightning.pytorch.", name)
    return name if name.startswith("torch.optim.lr_scheduler.") else _HOME.sub(r"\1.\2", name)


def _names_of_callbacks(classes: dict[str, Value]) -> dict[str, str]:
    """Section -> a name of its own, of the class: `early_stopping`."""
    names: dict[str, str] = {}
    for section, value in classes.items():
        if re.fullmatch(r"trainer\.callbacks(\.\d+)?", section):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(value).rpartition(".")[2]).lower()
            word = re.sub(r"[^a-z0-9_]", "_", words) or "callback"
            taken = sum(re.fullmatch(rf"{word}(_\d+)?", other) is not None for other in names.values())
            names[section] = f"{word}_{taken + 1}" if taken else word
    return names


def _logger(draft: RecipeDraft, key: Key, path: str, classes: dict[str, Value]) -> None:
    section = re.sub(r"^(trainer\.logger(?:\.\d+)?)\..*", r"\1", path)
    where, name, taken = _LOGGERS.get(str(classes.get(section)).rpartition(".")[2], ("", "", ()))
    argument = path.rpartition(".")[2]
    if where and argument == "class_path":
        target = f"nemo_vfm.train.loggers.{name}"
        draft.change(key.path, f"loggers.{where}._target_", target, "ours, in the run folder")
    elif where and argument in taken and key.value is not None:
        draft.carry(key.path, f"loggers.{where}.{argument}")
    else:
        draft.leave(key.path, _LEFT["trainer.logger"])


def _option(draft: RecipeDraft, key: Key, name: str) -> None:
    """An argument of the Trainer."""
    value = _PRECISIONS.get(str(key.value)) if name == "precision" else None
    listed = isinstance(key.value, tuple) and key.value and all(type(one) is int for one in key.value)
    if value is not None:
        draft.change(key.path, "trainer.precision", value, "Lightning's longer name for it")
    elif type(key.value) is _BESIDE.get(name) or (name == "devices" and (key.value == "auto" or listed)):
        draft.carry(key.path, name)
    elif name.partition(".")[0] in _options() and not re.search(r"\.(?:class_path|init_args)", name):
        draft.carry(key.path, f"trainer.{name}")
    else:
        draft.leave(key.path, _LEFT.get(f"trainer.{name.partition('.')[0]}", UNKNOWN))


@cache
def _options() -> set[str]:
    from nemo_vfm.train.lightning.fit_settings import (
        TrainerOptions,  # it brings torch, which other formats can do without
    )

    return {one.name for one in fields(TrainerOptions)}


def trust_words(draft: RecipeDraft) -> str:
    """The options that let a recipe name its classes: a package, and of torch and Lightning only what it needs.

    The standard library has no components: a file that names a class of it gets no option for it.
    """
    names = [str(value) for address, value in draft.values.items() if address.rpartition(".")[2] == "_target_"]
    ours = (*DEFAULT_TRUST, "???")
    asked = (name for name in names if not (name in ours or name.startswith("nemo_vfm.")) and _NAME.fullmatch(name))
    tops = {name: name.partition(".")[0] for name in asked}
    words = (name if top in ("torch", "lightning") else top for name, top in tops.items()
             if top not in sys.stdlib_module_names)  # fmt: skip
    return "".join(f" --trust {word}" for word in dict.fromkeys(words))
