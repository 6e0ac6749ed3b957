"""Explains what a user named (a class, `slot=choice` or a slot), also as YAML that is ready to paste."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_origin, is_typeddict

from nemo_vfm.cli.catalogue.components import (
    Catalogue,
    Slot,
    all_names,
    catalogue,
    full_names,
    is_component,
    slots_in,
    slots_of,
)
from nemo_vfm.cli.catalogue.constructor_arguments import ArgumentInfo, describe, node_of, summary, words
from nemo_vfm.config import Mark, Roots, SourceText, hints
from nemo_vfm.config.emit import NOWHERE, to_yaml
from nemo_vfm.config.locate import NotLocated, locate
from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar, to_plain
from nemo_vfm.config.yaml_source import read
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import declared_packages, install_line
from nemo_vfm.core.types.job import made_by
from nemo_vfm.core.types.json_value import Json

_WIDEST = 56  # a comment behind a longer line is not aligned with the others
_DEEPEST = 6
Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Places:
    """The slots of one name that take the same components."""

    slots: list[Slot]  #: of all their owners
    ingredients: list[str]  #: those that are made of what fits
    filled_by: list[str]  #: what fits


@dataclass(frozen=True, slots=True)
class Explanation:
    """One component, protocol or group of components."""

    name: str  #: dotted, or `slot=choice`
    summary: str  #: the first paragraph of what is written about it
    arguments: list[ArgumentInfo] = field(default_factory=list)
    fills: list[Slot] = field(default_factory=list)  #: the slots it fits
    ingredients: dict[str, list[str]] = field(default_factory=dict)  #: `{slot: choices}` that are made of it
    filled_by: list[str] = field(default_factory=list)  #: for a protocol or a slot: the components that fit
    #: for a slot: what fits, apart for owners that take other components
    places: list[Places] = field(default_factory=list)
    yaml: str = ""  #: ready to paste; empty for a protocol
    packages: list[str] = field(default_factory=list)  #: optional packages that it needs, in words
    install: str = ""  #: the line that installs them; empty where it needs none
    makes: tuple[str, ...] = ()  #: of a job: what it makes in its run folder

    def to_json(self) -> Json:
        """For machines."""
        arguments = []
        for one in self.arguments:
            node = None if one.required or one.given else node_of(one.default)
            arguments.append({"name": one.name, "type": one.words, "text": one.text, "required": one.required,
                              "given": one.given, "default": None if node is None else to_plain(node)})  # fmt: skip
        return {
            "name": self.name, "summary": self.summary, "arguments": arguments,
            "fills": [_slot_json(slot) for slot in self.fills],
            "ingredients": self.ingredients, "filled_by": self.filled_by,
            "places": [{"slots": [_slot_json(slot) for slot in one.slots], "ingredients": one.ingredients,
                        "filled_by": one.filled_by} for one in self.places],
            "yaml": self.yaml,
            "packages": self.packages, "install": self.install, "makes": [*self.makes],
        }  # fmt: skip


def explain(word: str, roots: Roots, trust: Sequence[str]) -> Explanation:
    """Say what `nemo_vfm.models.dit.DiT`, `DiT`, `model=dit_s` or `model` is."""
    if "=" in word:
        return _choice(word, roots, trust)
    if word in slots_of(roots) and not full_names(word, roots):
        found = catalogue(roots, trust)
        slots = [slot for slot in found.slots if slot.name == word]
        by_filling: dict[tuple[str, ...], list[Slot]] = {}
        for owner in dict.fromkeys(slot.owner for slot in slots):
            owned = [slot for slot in slots if slot.owner == owner]
            filling = dict.fromkeys(name for slot in owned for name in found.components_for(slot.kind))
            by_filling.setdefault(tuple(filling), []).extend(owned)
        places = [Places(slots_there, [choice for choice, target in roots.targets(word).items() if target in filling],
                         [*filling]) for filling, slots_there in by_filling.items()]  # fmt: skip
        about = f"A slot: `defaults: [{{{word}: CHOICE}}]` takes an ingredient, `{word}=CHOICE` another one."
        filled_by = list(dict.fromkeys(name for one in places for name in one.filled_by))
        return Explanation(
            word, about, fills=slots, ingredients={word: roots.choices(word)}, filled_by=filled_by, places=places
        )
    name = word if "." in word else _one(word, roots)
    try:
        locate(name, trust)  # before anything else is looked at: what is not trusted is not imported
    except NotLocated as error:
        raise UserError(str(error)) from error
    found = catalogue(roots, trust, more=[name])
    if name not in found.known:
        raise UserError(f"{name} cannot be explained: {found.left_out[name]}")
    target = found.known[name]
    if is_component(target):
        return _component(found, roots, name)
    slots = [slot for slot in found.slots if slot.kind is target]
    return Explanation(name, summary(target), fills=slots, filled_by=found.components_for(target))


def kind_name(kind: Any) -> str:
    """What a slot asks for, in one word."""
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


def _component(found: Catalogue, roots: Roots, name: str) -> Explanation:
    target = found.known[name]
    try:
        arguments, yaml = describe(target, num_given(found, name)), yaml_text(found, name)
    except TypeError as error:
        raise UserError(f"{name} cannot be explained: {error}") from error
    needs = declared_packages(target)
    install = install_line(module for need in needs for module in need.modules)
    made = {slot: [choice for choice, kind in roots.targets(slot).items() if kind == name] for slot in slots_of(roots)}
    made = {slot: names for slot, names in made.items() if names}
    return Explanation(
        name, summary(target), arguments, found.slots_for(name), made, yaml=yaml,
        packages=[str(need) for need in needs if need.modules], install=install, makes=made_by(target),
    )  # fmt: skip


def _choice(word: str, roots: Roots, trust: Sequence[str]) -> Explanation:
    """An ingredient: its class, with what the file says in the place of the defaults."""
    slot, _, choice = word.partition("=")
    file = roots.require_ingredient(slot, choice, Mark(SourceText.from_word(word), 1, len(slot) + 2))
    tree = read(file)
    comment = [
        line.lstrip("# ").strip() for line in tree.mark.source.lines if line.startswith("#") and "SPDX" not in line
    ]
    name = tree.target()
    if name is None:
        parts = [below.target() or "" for below in tree.items.values() if isinstance(below, Map)]
        return Explanation(
            word, " ".join(comment), filled_by=list(filter(None, parts)), yaml=to_yaml(tree.without("defaults"))
        )
    inner = explain(name, roots, trust)
    values = dict(tree.without("defaults").items)
    found = catalogue(roots, trust, more=[name])
    yaml = yaml_text(found, name, values)
    said = {key: value for key, node in values.items() if (value := to_plain(node)) != MISSING}
    arguments = [replace(one, default=said[one.name]) if one.name in said else one for one in inner.arguments]
    about = " ".join(filter(None, (" ".join(comment), f"A {name}: {inner.summary}")))
    fitting = {other for place in inner.fills for other in found.components_for(place.kind)}
    own = {slot.rpartition(".")[2]: [one for one, target in roots.targets(slot).items() if target in {"", *fitting}]}
    return replace(inner, name=word, summary=about, arguments=arguments, ingredients=own, yaml=yaml)


def _one(short: str, roots: Roots) -> str:
    names = full_names(short, roots)
    if not names and short in dict(roots.all_recipes()):
        raise UserError(f"there is no component {short}; {short} is a recipe: `nemo-vfm show {short}`")
    if not names:  # a slot is meant (they are lower-case, as no class is), or a class
        known = [name.rpartition(".")[2] for name in all_names(roots)]
        same = [name for name in known if name.lower() == short.lower()]
        slot = "" if same or not short.islower() else did_you_mean(short, slots_of(roots))
        near = slot or did_you_mean(same[0] if same else short, same or known, most=len(known))  # once: 20 ms
        raise UserError(f"there is no component {short}{near or '; `nemo-vfm explain` alone lists what there is'}")
    if len(names) > 1:
        listed = "\n".join(f"  {name}" for name in names)
        raise UserError(f"{short} is the name of {len(names)} classes; say which:\n{listed}")
    return names[0]


def _slot_json(slot: Slot) -> Json:
    return {"slot": slot.name or "root", "of": slot.owner, "kind": kind_name(slot.kind), "factory": slot.later}


def yaml_text(found: Catalogue, name: str, values: Mapping[str, Node] | None = None) -> str:
    """The text; `values` of an ingredient stand in the place of defaults."""
    lines = list(_component_lines(found, name, dict(values or {}), 0))
    width = max((len(text) for text, comment in lines if comment and len(text) <= _WIDEST), default=0)
    shown = (f"{text:<{width}}  # {comment}" if comment else text for text, comment in lines)
    return "".join(f"{line}\n" for line in shown)


def num_given(found: Catalogue, name: str) -> int | None:
    """How many arguments the slots that a component fits give by position later."""
    counts = [slot.num_given for slot in found.slots_for(name) if slot.later]
    return None if None in counts else max((count for count in counts if count is not None), default=0)


def _component_lines(found: Catalogue, name: str, values: dict[str, Node], depth: int) -> Iterator[Line]:
    if not is_typeddict(found.known[name]):  # that is what its keys are, not what makes it
        yield f"{TARGET}: {name}", ""
    for argument in describe(found.known[name], num_given(found, name)):
        key, said, hint = argument.name, values.pop(argument.name, None), hints.bare_hint(argument.hint)
        options = [hints.bare_hint(option) for option in (get_args(hint) if hints.is_union(hint) else [hint])]
        # One component: not several, by name or in a list.
        takes_one = not any(hints.is_mapping(option) or hints.is_list(option) for option in options)
        fitting = list(
            dict.fromkeys(name for slot in slots_in(argument.hint) for name in found.components_for(slot.kind))
        )
        if said is not None and not (isinstance(said, Scalar) and said.value == MISSING):
            yield from _lines(key, said)
        elif said is None and argument.given:
            yield f"# {key}: given by the job, when it is made", ""
        elif said is None and not argument.required:
            node = node_of(argument.default)
            lines = [(f"# {key}: may be left out", "")] if node is None else list(_lines(key, node))
            if node is not None and argument.default is None:
                lines[0] = (lines[0][0], _type_text(argument, fitting))
            yield from lines
        elif said is None and len(fitting) == 1 and takes_one and depth < _DEEPEST:
            yield f"{key}:", ""
            for text, comment in _component_lines(found, fitting[0], {}, depth + 1):
                yield f"  {text}", comment
        else:
            yield f"{key}: {MISSING}", _type_text(argument, fitting)
    for key, node in values.items():
        if key != TARGET:
            yield from _lines(key, node)


def _lines(key: str, node: Node) -> Iterator[Line]:
    for line in to_yaml(Map({key: node}, NOWHERE)).splitlines():
        yield line, ""


def _type_text(argument: ArgumentInfo, fitting: list[str]) -> str:
    short, text = [name.rpartition(".")[2] for name in fitting], words(argument.hint)
    return (
        text if not short or text.removesuffix(" or null").endswith(f" {short[0]}") else f"{text}: {', '.join(short)}"
    )
