"""Declares what a component needs, optional packages and a GPU; imports the former, and says how to install them."""

import inspect
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from nemo_vfm.core.errors import MissingPackage

#: Module -> the extra of ours that brings it. Any other is installed by its own name.
EXTRAS = {
    "alembic": "mlflow", "decord": "decord", "diffusers": "diffusers", "imagecodecs": "microscopy",
    "jsonschema": "functions", "megatron": "megatron", "mlflow": "mlflow", "nemo": "nemo", "numba": "recsys",
    "ray": "ray",
    "sentencepiece": "text", "sqlalchemy": "mlflow", "starlette": "serve", "tifffile": "microscopy",
    "tokenizers": "text", "torchcodec": "torchcodec", "transformer_engine": "te", "transformers": "transformers",
    "uvicorn": "serve", "wandb": "wandb",
}  # fmt: skip
#: The extra that pip must not put into the environment one works in.
APART = {
    "nemo": "in a separate environment, as it needs an older Lightning: make setup-nemo (docs/how-to/training/nemo.md)"
}
_CHATTY = frozenset(("diffusers", "transformers"))
GIVEN: Final = object()  #: any value but None
_ATTRIBUTE, IDLE_PARTS = "__needed__", "__idle_parts__"

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Need:
    """Modules without which a component cannot work, or a GPU, for which it has work."""

    modules: tuple[str, ...]  #: by name
    #: argument -> the value with which the component needs them; empty where it always does.
    where: Mapping[str, object] = field(default_factory=dict)
    on_gpu: bool = False  #: whether it does without the modules on a CPU
    gpu: bool = False  #: whether it computes on a GPU, where there is one

    def __str__(self) -> str:
        cases = [f"{name} is {'given' if value is GIVEN else value}" for name, value in self.where.items()]
        cases += ["it runs on a GPU"] * self.on_gpu
        return ", ".join(self.modules) + (f" where {' and '.join(cases)}" if cases else "")


def needs_packages(*modules: str, where: Mapping[str, object] | None = None, on_gpu: bool = False) -> Callable[[C], C]:
    """Declare what a component imports by `require`, itself or in what it calls; see `Need`."""
    return partial(_declare, Need(modules, where or {}, on_gpu))


def needs_gpu(where: Mapping[str, object] | None = None) -> Callable[[C], C]:
    """Declare that a component computes on a GPU; a launcher asks for none where no part does. See `Need`."""
    return partial(_declare, Need((), where or {}, gpu=True))


def _declare(need: Need, component: C) -> C:
    setattr(component, _ATTRIBUTE, (*declared_packages(component), need))
    return component


def computes_nothing(component: C) -> C:
    """Declare a component that only reads what its parts have computed, so that it needs no GPU for them."""
    setattr(component, IDLE_PARTS, True)
    return component


def declared_packages(component: Callable[..., Any]) -> tuple[Need, ...]:
    """What a component, or a class that it is derived from, declares."""
    found: tuple[Need, ...] = getattr(component, _ATTRIBUTE, ())
    return found


def needed_packages(component: Callable[..., Any], given: Mapping[str, object]) -> list[Need]:
    """What it needs with these arguments; the others have their defaults."""
    if not (all_needs := declared_packages(component)):
        return []
    defaults = {name: one.default for name, one in inspect.signature(component).parameters.items()}
    values = {**defaults, **given}
    return [need for need in all_needs
            if all(values[name] is not None if value is GIVEN else values[name] == value
                   for name, value in need.where.items())]  # fmt: skip


def available(module: str) -> bool:
    """Whether the package of `module` is installed; nothing of it is imported."""
    top = module.partition(".")[0]
    if top in sys.modules:  # also where it has no spec, or stands as None for what may not be imported
        return sys.modules[top] is not None
    try:
        return find_spec(top) is not None
    except ModuleNotFoundError:  # a finder that somebody added may refuse
        return False


def require(module: str, *, purpose: str) -> ModuleType:
    """Import `module`, or say how to get it; `purpose` is what needs it, as the beginning of a sentence.

    Raises:
        MissingPackage: it is not installed.
    """
    if module in _CHATTY:
        # Their warnings and bars are of their own insides; what of them matters to a user is checked by us and said in
        # a sentence of ours. Modules are imported long after their package, so this stays for the process.
        # NAME_VERBOSITY=info brings a library's words back.
        os.environ.setdefault(f"{module.upper()}_VERBOSITY", "error")
        for name in ("torchao", "accelerate", "torch.utils._pytree"):  # the last of names that torchao registers
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=r"(diffusers|transformers|torchao|accelerate|huggingface_hub)\b")
    try:
        __import__(module)
    except ImportError as error:
        raise MissingPackage(
            f"{purpose} needs the package {module!r}, which cannot be imported here ({error}). "
            f"Install it: {install_line([module])}"
        ) from error
    if module in _CHATTY:
        sys.modules[module].utils.logging.disable_progress_bar()
    return sys.modules[module]


def install_line(modules: Iterable[str]) -> str:
    """One line for pip that brings all of them at the tested versions."""
    tops = {module.partition(".")[0] for module in modules}
    return line_of_extras({EXTRAS[top] for top in tops if top in EXTRAS}, tops - EXTRAS.keys())


def line_of_extras(extras: Iterable[str], packages: Iterable[str] = ()) -> str:
    """The same, of our extras and of packages by their own names; what must lie apart is told behind it."""
    names = sorted(extras)
    here = [name for name in names if name not in APART]
    wanted = [*([f"nemo_vfm[{','.join(here)}]"] if here else []), *sorted(packages)]
    isolation = ["--no-build-isolation"] if "te" in here else []  # it is built against the torch that is there
    pins = ["-c", shlex.quote(str(file))] if (file := constraints()) else []
    words = ["pip", "install", *isolation, *pins, *(f"'{name}'" for name in wanted)]
    return "; ".join([*([" ".join(words)] if wanted else []), *(f"{n} {APART[n]}" for n in names if n in APART)])


def constraints() -> Path | None:
    """The tested versions beside this environment's torch, as `make` left them; else those of the checkout."""
    places = (Path(sys.prefix), Path(__file__).resolve().parents[2])
    found = next((folder / "constraints.txt" for folder in places if (folder / "constraints.txt").is_file()), None)
    return found.relative_to(Path.cwd()) if found is not None and found.is_relative_to(Path.cwd()) else found
