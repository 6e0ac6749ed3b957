"""Finds the class or function that a dotted name of a recipe means, or says why it is not trusted.

A recipe is text from a stranger. A name is matched against the trust list before anything is imported, since importing
runs code. Then one attribute is taken. The object itself must also be defined in a trusted module, since a module
exposes all that it imported (`logging.os.system` is `posix.system`). The caller gives the list, never the recipe.
"""

import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.core.types.component import may_be_named

_MAX_FILES = 3000
_DEFINITION = re.compile(r"^(?:class|def) ([A-Za-z]\w*)", re.MULTILINE)
#: Ours, and third-party classes by name. An entry that ends in a dot trusts what is defined below it; any other
#: trusts exactly the object of that name. Of Lightning's there are the modules of its demonstration, and callbacks that
#: write no path of their own (the finders put a checkpoint into the run folder, and remove it). ModelCheckpoint,
#: OnExceptionCheckpoint, SpikeDetection and the loggers write where their arguments say; LambdaCallback runs functions.
DEFAULT_TRUST: tuple[str, ...] = (
    "nemo_vfm.",
    *(f"lightning.pytorch.callbacks.{name}" for name in (
        "BackboneFinetuning", "BatchSizeFinder", "DeviceStatsMonitor", "EMAWeightAveraging", "EarlyStopping",
        "GradientAccumulationScheduler", "LearningRateFinder", "LearningRateMonitor", "ModelPruning", "ModelSummary",
        "RichModelSummary", "RichProgressBar", "StochasticWeightAveraging", "TQDMProgressBar", "ThroughputMonitor",
        "Timer", "WeightAveraging",
    )),
    "lightning.pytorch.demos.boring_classes.BoringDataModule", "lightning.pytorch.demos.boring_classes.BoringModel",
    "torch.optim.AdamW", "torch.optim.Adam", "torch.optim.SGD",
    *(f"torch.optim.lr_scheduler.{name}" for name in (
        "ConstantLR", "CosineAnnealingLR", "LinearLR", "OneCycleLR", "StepLR",
    )),
)  # fmt: skip

#: What is ours and yet starts code that a recipe only points at: prefix -> the word that `--trust` must give besides.
GUARDED: dict[str, str] = {
    "nemo_vfm.nemo.experiment.": "nemo", "nemo_vfm.nemo.transcribe.NeMoSpeech": "nemo",
    "nemo_vfm.data.sources.piped.": "piped", "nemo_vfm.curate.learned.cosmos_embed.": "model_code",
}  # fmt: skip

#: Packages whose functions and class methods may run code that an argument names, as torch.hub.load and numpy.load do:
#: each must be trusted by its own name.
_RUN_OTHERS = {*sys.stdlib_module_names, "lightning", "numpy", "pytorch_lightning", "torch", "transformers"}

Target = Callable[..., Any]


class NotLocated(Exception):
    """The name cannot be used; the text says why and what to try."""


def trust_list(extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The default list and what `--trust` added: a package, a module or a class."""
    return (*DEFAULT_TRUST, *(prefix for name in extra for prefix in (name.rstrip("."), f"{name.rstrip('.')}.")))


def locate(name: str, trust: Sequence[str]) -> Target:
    """The trusted class or function called `name`.

    Raises:
        NotLocated: it is not trusted, does not exist, or is something else.
    """
    module_name, _, attribute = name.rpartition(".")
    if not module_name or not all(part.isidentifier() and part.isascii() for part in name.split(".")):
        hint = elsewhere(name, trust) or ", such as nemo_vfm.train.job.Train"
        raise NotLocated(f"{name!r} is not the dotted name of a class{hint}")
    if word := _missing_word(name, trust):
        raise NotLocated(f"{name} runs code that its input files name; if you trust them, add --trust {word}")
    if not _is_trusted(name, trust):
        package, advice = name.split(".")[0], "the standard library has no components"
        if package not in sys.stdlib_module_names:
            advice = f"if you trust its code, add --trust {package}"
        # A trusted name that may be meant: none where the name exists, since then it is meant itself.
        entries = [entry for entry in trust if not entry.endswith(".")]
        if module_name in {entry.rpartition(".")[0] for entry in entries}:
            with suppress(ImportError):
                importlib.import_module(module_name)
        exists = hasattr(sys.modules.get(module_name), attribute)  # nothing else is imported: that would run its code
        raise NotLocated(f"{name} is not trusted{'' if exists else did_you_mean(name, entries)}; {advice}")
    if any(part.startswith("_") for part in name.split(".")):
        raise NotLocated(f"{name} is private; recipes name public classes")
    try:
        found: Any = _import(module_name, attribute, trust)
    except NotLocated:
        found = _class_method(module_name, attribute, trust)
        if found is None or not is_users(found, name, trust):
            raise
    _require_identity(name, found, trust)
    target: Target = found
    return target


def _missing_word(name: str, trust: Sequence[str]) -> str | None:
    """What `--trust` must still say before a guarded name of ours may be used; None where nothing is missing."""
    words = (word for prefix, word in GUARDED.items() if name.startswith(prefix) and f"{word}." not in trust)
    return next(words, None)


def is_trusted(kind: type, trust: Sequence[str]) -> bool:
    """Whether a class may be made without being named: the one that its slot is annotated with."""
    home = f"{kind.__module__}.{kind.__qualname__}"
    return _is_trusted(home, trust) and _missing_word(home, trust) is None and not _acts(kind)


def is_ours(target: Target) -> bool:
    """Whether a class or function is defined in this project."""
    return target.__module__.partition(".")[0] in ("nemo_vfm", "launcher")


def is_users(target: Target, name: str, trust: Sequence[str]) -> bool:
    """Whether a name is used because of the user's own `--trust`, and is not ours: then its code runs anyway."""
    return not is_ours(target) and _is_trusted(name, [entry for entry in trust if entry not in DEFAULT_TRUST])


def _class_method(owner_name: str, name: str, trust: Sequence[str]) -> Target | None:
    """A class method of a class that is itself defined where it is trusted; its module has been imported."""
    module, _, attribute = owner_name.rpartition(".")
    owner = getattr(sys.modules.get(module), attribute, None)
    found: Any = getattr(owner, name, None) if inspect.isclass(owner) else None
    if not inspect.ismethod(found):
        return None
    if f"{owner_name}.{name}" not in trust:
        _require_identity(owner_name, owner, trust)
    return found


def _is_trusted(name: str, trust: Sequence[str]) -> bool:
    return any(name.startswith(entry) if entry.endswith(".") else name == entry for entry in trust)


def _require_identity(name: str, found: Any, trust: Sequence[str]) -> None:
    """What was found must be a class or function that is defined where it is trusted, not merely visible there."""
    is_class_method = inspect.ismethod(found) and inspect.isclass(found.__self__)
    if not (inspect.isclass(found) or inspect.isfunction(found) or is_class_method):
        raise NotLocated(f"{name} is not a class or function")
    if name in trust:  # named one by one by whoever wrote the list, who knew what it is
        return
    if not inspect.isclass(found) and name.partition(".")[0] in _RUN_OTHERS:
        raise NotLocated(f"{name} is a function, and some of {name.partition('.')[0]} run code that an argument names; "
                         f"if you trust this one, add --trust {name}")  # fmt: skip
    home = f"{found.__module__}.{found.__qualname__}"
    if word := _missing_word(home, trust):
        raise NotLocated(f"{name} is defined as {home}, which needs --trust {word}")
    prefixes = [entry for entry in trust if entry.endswith(".") and name.startswith(entry)]
    if not any(home.startswith(prefix) for prefix in prefixes):
        raise NotLocated(f"{name} is defined as {home}, which is not trusted")
    if "<locals>" in home:
        raise NotLocated(f"{name} is defined inside a function; recipes can name only top-level classes")
    if _acts(found):
        why = "opens its arguments while it is built" if inspect.isclass(found) else "may do more than build an object"
        raise NotLocated(f"{name} {why}, so recipes cannot use it; name a component, or your own with --trust PACKAGE")


def _acts(found: Target) -> bool:
    """Whether it is ours and does something when it is called, or may do so."""
    return found.__module__.partition(".")[0] == "nemo_vfm" and not may_be_named(found)


def _import(name: str, attribute: str, trust: Sequence[str]) -> object:
    """What a module has under a name."""
    package = name.partition(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        # A trusted package that is not installed is found where the user stands, behind all that is installed.
        here = (str(folder) for folder in (Path.cwd(), Path.cwd() / "src"))
        sys.path += [folder for folder in here if PathFinder.find_spec(package, [folder]) is not None][:1]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise NotLocated(f"{name} cannot be imported: the package {error.name} is not installed") from error
        hint = elsewhere(f"{name}.{attribute}", trust) or _module_suggestion(name)
        if not hint and error.name == name.partition(".")[0]:
            raise NotLocated(f"the package {error.name} is not installed") from error
        raise NotLocated(f"there is no module {name}{hint}") from error
    except (Exception, SystemExit) as error:  # a package of the user's may do anything when it is imported
        raise NotLocated(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    found = vars(module).get(attribute)
    if found is None:
        found = getattr(module, attribute, None)  # packages that load their names late
    if found is None:
        own = [n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__.startswith(module.__name__)]
        public = [n for n in own if not n.startswith("_")]
        known = f"; it has {', '.join(public)}" if public else ""
        hint = elsewhere(f"{module.__name__}.{attribute}", trust) or did_you_mean(attribute, own) or known
        raise NotLocated(f"{module.__name__} has no {attribute}{hint}")
    return found


def _module_suggestion(name: str) -> str:
    """The modules beside the one that does not exist; nothing more is imported than leads there."""
    parent, _, last = name.rpartition(".")
    if not parent:
        return ""
    try:
        package = importlib.import_module(parent)
    except ImportError:
        return _module_suggestion(parent)
    siblings = [info.name for info in pkgutil.iter_modules(getattr(package, "__path__", []))]
    close = did_you_mean(last, siblings)
    return close or f"; {parent} holds {', '.join(sorted(siblings))}" if siblings else ""


def elsewhere(name: str, trust: Sequence[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    last = name.rpartition(".")[2]
    if not last.isidentifier() or not last.isascii() or last.startswith("_"):
        return ""
    found = [place for entry in trust if entry.endswith(".") for place in _index(entry.rstrip(".")).get(last, ())]
    return f"; did you mean {' or '.join(dict.fromkeys(found[:3]))}?" if found else ""


@cache
def _index(package: str) -> dict[str, list[str]]:
    """Each public name that the files of a package define, with where; empty where it has not been imported."""
    found: dict[str, list[str]] = {}
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        for file in sorted(Path(folder).rglob("*.py"))[:_MAX_FILES]:
            parts = (file.parent if file.name == "__init__.py" else file.with_suffix("")).relative_to(folder).parts
            if not any(part.startswith("_") for part in parts):
                for name in _DEFINITION.findall(file.read_text("utf-8", "replace")):
                    found.setdefault(name, []).append(".".join((package, *parts, name)))
    return found
