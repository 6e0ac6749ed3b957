"""Finds every slot that can be reached from the jobs, and the components that fit each.

A slot is the type of an argument: one of our protocols or classes, or a class of another package (`nn.Module`). Any
class with the methods of our protocol fits it. For another package's class only what an ingredient, a recipe or the
trust list names counts, since every layer of every network is an `nn.Module`.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from nemo_vfm.config import hints
from nemo_vfm.config.locate import DEFAULT_TRUST, NotLocated, Target, locate
from nemo_vfm.config.overrides import SLOT as OVERLAY
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.slot_fit import fits, member_names, required_methods
from nemo_vfm.core.types.job import Job
from nemo_vfm.perf.network import Network

#: What fills ingredients that no recipe takes: a verb reads them, such as `plan --network dgx_h100`.
READ_BY_VERBS: dict[str, type] = {"network": Network}
_PACKAGE = Path(__file__).resolve().parents[2]
_TARGET = re.compile(r"""_target_["']?:\s*["']?([A-Za-z_]\w*(?:\.\w+)+)""")
#: Folders of `conf/` that the launcher alone reads: no recipe takes an ingredient of them.
_LAUNCHERS = ("cluster", "container")
_NO_COMPONENTS = ("cli", "config", "explain", "runtime")
_SLOW = ("lightning", "pytorch_lightning", "megatron")
#: What stands in the first column is of the module itself. Syntax trees of all files would take 2 s more.
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^(?:import ([\w.]+)|from ([\w.]+) import (\([^)]*\)|.*))", re.MULTILINE)
_NAME = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a component."""

    kind: Any  #: what it asks for
    name: str = ""  #: the argument
    owner: str = ""  #: short name of the component that has the argument; empty for the root of a recipe
    later: bool = False  #: a factory is handed over
    #: arguments by position that the factory will be given; None where the annotation leaves it open
    num_given: int | None = 0


@dataclass(slots=True)
class Catalogue:
    """What there is to choose from."""

    known: dict[str, Target] = field(default_factory=dict)  #: candidates by dotted name
    named: set[str] = field(default_factory=set)  #: those that an ingredient, a recipe or the trust list names
    #: those that cannot be used, with the reason; what nobody names is left out in silence
    left_out: dict[str, str] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)

    def components_for(self, kind: Any) -> list[str]:
        """The names of the components that fit, in order."""
        required = required_methods(kind)
        likely = ((name, target) for name, target in self.known.items() if required <= _member_names(target))
        fitting = {name: target for name, target in likely if _makes(target, kind) and is_component(target)}
        return [name for name, target in fitting.items() if name in self.named or _is_meant(target, kind)]

    def slots_for(self, name: str) -> list[Slot]:
        """The slots that a component fits."""
        target = self.known[name]
        return [slot for slot in self.slots if _makes(target, slot.kind)]

    def all_components(self) -> list[str]:
        """Every component that fills some slot."""
        return list(dict.fromkeys(name for kind in self.kinds() for name in self.components_for(kind)))

    def kinds(self) -> list[Any]:
        """What slots ask for, each once."""
        return list(dict.fromkeys(slot.kind for slot in self.slots))


def catalogue(roots: Roots, trust: Sequence[str], *, more: Iterable[str] = (), all_classes: bool = True) -> Catalogue:
    """Look at every candidate, of ours all or those that are named, and follow the slots down from the jobs."""
    # Importing Lightning takes some 5 s; what recipes and the trust list name of it is explained when asked for.
    has_lightning = "lightning" in sys.modules
    named = [*(name for name in named_in(roots) if has_lightning or not name.startswith("lightning.")), *more]
    found = Catalogue()
    _look_up(found, [*named, *(own_classes() if all_classes else ())], trust)
    classes = [entry for entry in trust if not entry.endswith(".")]  # ours have brought torch
    trusted = [one for one in classes if one not in DEFAULT_TRUST or one.partition(".")[0] in sys.modules]
    _look_up(found, trusted, trust)
    found.named = {*named, *trusted}
    found.slots = [Slot(Job), *map(Slot, READ_BY_VERBS.values()), *_reachable_slots(found, trust)]
    prefixes = {*trusted} - {*named_in(roots), *more}  # a package that is trusted is no class, and nobody said it was
    found.left_out = {name: why for name, why in found.left_out.items() if name in found.named - prefixes}
    return found


def _look_up(found: Catalogue, names: Iterable[str], trust: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        try:
            found.known.setdefault(name, locate(name, trust))
        except NotLocated as error:
            found.left_out[name] = str(error)
        except Exception as error:  # some optional packages raise RuntimeError and the like when imported
            found.left_out[name] = f"{name} cannot be imported: {type(error).__name__}: {error}"


def slots_in(hint: Any) -> Iterator[Slot]:
    """The slots inside an annotation, nameless."""
    hint = hints.bare_hint(hint)
    if hints.is_factory(hint):
        given, made = hints.factory_parts(hint)
        yield Slot(made, later=True, num_given=None if given is None else len(given))
    elif hints.is_union(hint) or hints.is_mapping(hint) or hints.is_list(hint):
        for part in get_args(hint):
            yield from slots_in(part)
    elif hints.is_component(hint) and not hints.is_open(hint):
        yield Slot(hint)


def is_component(target: Target) -> bool:
    """Whether it can be built: not a protocol and not abstract."""
    return not hints.is_protocol(target) and not inspect.isabstract(target)


def _reachable_slots(found: Catalogue, trust: Sequence[str]) -> list[Slot]:
    """Breadth first; a kind is followed once."""
    slots: list[Slot] = []
    seen: set[str] = set()
    min_given: dict[Any, int] = {}  # by kind: each is compared with a component once, however many slots ask for it
    wanted = [name for kind in (Job, *READ_BY_VERBS.values()) for name in found.components_for(kind)]
    while wanted:
        name = wanted.pop(0)
        if name in seen:
            continue
        seen.add(name)
        num_given = min((n for kind, n in min_given.items() if _makes(found.known[name], kind)), default=0)
        try:
            arguments = hints.signature(found.known[name]).arguments.values()
        except TypeError as error:
            found.left_out[name] = str(error)
            del found.known[name]  # one that cannot be read must not take the others with it
            continue
        given = [argument for argument in arguments if argument.positional][:num_given]
        asked = [(one.name, slot) for one in arguments if one not in given for slot in slots_in(one.hint)]
        for argument, slot in asked:
            slots.append(Slot(slot.kind, argument, name.rpartition(".")[2], slot.later, slot.num_given))
            kind, n = slot.kind, slot.num_given or 0
            is_new = kind not in min_given
            min_given[kind] = min(n, min_given.get(kind, n))
            # A plain class that a slot asks for by itself fits it, whether or not anything else names it.
            if is_new and inspect.isclass(kind) and is_component(kind) and kind not in found.known.values():
                own = f"{kind.__module__}.{kind.__qualname__}"
                with suppress(NotLocated):
                    found.known[own] = locate(own, trust)
                    found.named.add(own)
            if is_new:
                wanted += found.components_for(kind)
    return slots


@cache  # a schema asks 350,000 times about 30,000 pairs: 4.4 s without
def _makes(target: Target, kind: Any) -> bool:
    try:
        made = _result_type(target)
        is_plain = inspect.isclass(kind) and not hints.is_protocol(kind) and not hints.is_open(kind)
        if is_plain and inspect.isclass(made):
            return issubclass(made, kind)
        has_names = required_methods(kind) <= _member_names(target)  # a set, before methods are looked at one by one
        return made is not None and not hints.is_open(kind) and has_names and fits(made, kind)
    except TypeError:  # annotations that cannot be resolved, or a typed dictionary, of which nothing is a subclass
        return target is kind


@cache
def _result_type(target: Target) -> Any:
    """What it makes; None where that is not known."""
    made = hints.returns(target)
    return None if hints.is_open(made) else get_origin(made) or made


@cache
def _member_names(target: Target) -> frozenset[str]:
    """The names that what it makes has."""
    try:
        return member_names(_result_type(target))
    except TypeError:
        return frozenset()


@cache
def _is_meant(target: Target, kind: Any) -> bool:
    """Whether a class that nobody names fits on purpose: `str.split` and `open` of something else have a name only."""
    protocol = get_origin(kind) or kind
    if not protocol.__module__.startswith("nemo_vfm."):
        return False
    required = vars(protocol).items() if hints.is_protocol(protocol) else ()
    return all(_takes_as_many(inspect.getattr_static(target, name, None), method)
               for name, method in required if inspect.isfunction(method) and not name.startswith("_"))  # fmt: skip


def _takes_as_many(method: object, required: Callable[..., object]) -> bool:
    """Whether a method can be called with as many arguments by position as the protocol's takes."""
    if not inspect.isfunction(method):
        return False
    parameters = inspect.signature(method).parameters.values()
    spare = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wanted = sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(required).parameters.values())
    return sum(p.default is p.empty for p in positional) <= wanted and (spare or wanted <= len(positional))


@cache
def own_classes() -> tuple[str, ...]:
    """Dotted names of our public classes, but for modules that import a slow package, themselves or through ours.

    Components never do, importing one takes some 5 s, and neither `explain` nor an editor's schema should wait for it.
    """
    needs = {}
    for module, text in _own_texts().items():
        imported = set[str]()
        for plain, source, names in _IMPORT.findall(text):
            imported |= {plain, source, *(f"{source}.{name}" for name in _NAME.findall(names))}
        own = {name for name in imported if name.startswith(f"{_PACKAGE.name}.")}
        needs[module] = own | {name.partition(".")[0] for name in imported - own}  # of another package its name alone
    slow = set(_SLOW)
    while more := {module for module, names in needs.items() if module not in slow and names & slow}:
        slow |= more
    return tuple(name for name in _all_own_classes() if name.rpartition(".")[0] not in slow)


@cache
def _all_own_classes() -> tuple[str, ...]:
    """Those of slow modules, too."""
    named = [(module, name) for module, text in _own_texts().items() for name in _CLASS.findall(text)]
    return tuple(f"{module}.{name}" for module, name in named if not name.startswith("_"))


@cache
def _own_texts() -> dict[str, str]:
    texts = {}
    for file in sorted(_PACKAGE.rglob("*.py")):
        parts = (file.parent if file.name == "__init__.py" else file.with_suffix("")).relative_to(_PACKAGE).parts
        if parts and parts[0] not in _NO_COMPONENTS and not parts[-1].startswith("_"):
            texts[".".join((_PACKAGE.name, *parts))] = file.read_text(encoding="utf-8")
    return texts


def named_in(roots: Roots) -> list[str]:
    """Every class that an ingredient or a recipe names, ours and the user's, in order of first use."""
    names: dict[str, None] = {}
    for root in (*roots.conf, *roots.recipes):  # overlays count too: they name classes of ours
        for file in sorted(root.rglob("*.yaml")) if root.is_dir() else ():
            if root not in roots.conf or file.relative_to(root).parts[0] not in _LAUNCHERS:
                text = file.read_text(encoding="utf-8", errors="replace")
                names |= dict.fromkeys(match[1] for match in _TARGET.finditer(text))
    return list(names)


def slots_of(roots: Roots) -> list[str]:
    """The folders of ingredients that a recipe may take."""
    folders = [folder for root in roots.conf if root.is_dir() for folder in sorted(root.iterdir()) if folder.is_dir()]
    return list(dict.fromkeys(folder.name for folder in folders if folder.name not in (OVERLAY, *_LAUNCHERS)))


def full_names(short: str, roots: Roots) -> list[str]:
    """The dotted names that a short name may mean; what some recipe or ingredient names goes before other classes."""
    found = sorted(name for name in all_names(roots) if name.rpartition(".")[2] == short)
    return [name for name in found if name in named_in(roots)] or found


def all_names(roots: Roots) -> list[str]:
    """Every name that a short name is looked for among."""
    trusted = [entry for entry in DEFAULT_TRUST if not entry.endswith(".")]
    return list(dict.fromkeys([*_all_own_classes(), *named_in(roots), *trusted]))
