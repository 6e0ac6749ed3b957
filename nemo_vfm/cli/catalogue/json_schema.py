"""Writes a JSON Schema (draft 2020-12) of recipes and ingredients, with which editors complete and check them.

Every component has two definitions. The plain one checks keys and values. The complete one also requires arguments
without a default. It applies only to a recipe without `defaults`, since ingredients may give what the file itself
leaves out. For the same reason a mapping without `_target_` is checked against the arguments of all the components
that fit its slot. References stand alone: readers of older drafts ignore keys beside a reference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin

from nemo_vfm.cli.catalogue.components import READ_BY_VERBS, Catalogue, Slot, slots_in
from nemo_vfm.cli.catalogue.constructor_arguments import ArgumentInfo, describe, node_of, summary
from nemo_vfm.config import hints
from nemo_vfm.config.tree import TARGET, to_plain
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.frame_count import LatentFrames, PixelFrames
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.json_value import Json

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_LATER = {"description": "a value from elsewhere, or one for the user to give", "type": "string",
          "pattern": r"\$\{|^\?\?\?$"}  # fmt: skip
# A YAML 1.2 reader, as in editors, takes 400_000 for a text and a 1.1 reader 1e-4; a recipe takes both for numbers.
_GROUPED = {"type": "string", "pattern": r"^[-+]?[0-9]+(_[0-9]+)+$"}
_WRITTEN = {"type": "string", "pattern": r"^[-+]?(?=.*[_eE])[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$"}
_DURATION = {"type": "string", "pattern": r"^\s*[0-9][0-9_]*(\.[0-9]+)?([eE][0-9]+)?\s*[a-z]+\s*$"}
_VALUES: dict[Any, list[Json]] = {
    int: [{"type": "integer"}, _GROUPED], float: [{"type": "number"}, _WRITTEN], bool: [{"type": "boolean"}],
    str: [{"type": "string"}], type(None): [{"type": "null"}], Duration: [_DURATION],
    **{
        one: [{"type": "string", "pattern": rf"^\s*[0-9]+\s+{one.kind}\s+frames?\s*$"}]
        for one in (PixelFrames, LatentFrames)
    },
}  # fmt: skip
_REFERENCE = {"$ref": "#/$defs/later"}
#: Classes of Lightning's are not looked at: importing it takes some 5 s.
_LIGHTNINGS = {"description": "a class of Lightning's", "type": "string", "pattern": r"^lightning\."}
_RECIPE = {"description": "another recipe", "type": "string", "pattern": "^recipe:"}


@dataclass(slots=True)
class Schemas:
    """Makes definitions as they are asked for."""

    found: Catalogue  #: what there is to choose from
    choices: Mapping[str, list[str]]  #: `{slot: ingredients}`
    defs: dict[str, Json] = field(default_factory=dict)  #: what has been defined
    more: dict[str, Json] = field(default_factory=dict)  #: keys that are allowed beside a component's arguments

    def __post_init__(self) -> None:
        slots = {
            rf"(^|\.){slot}$": {"anyOf": [{"enum": names}, {"type": "string"}]} for slot, names in self.choices.items()
        }
        one = {"type": ["object", "string"], "pattern": "^recipe:.", "minProperties": 1, "maxProperties": 1,
               "patternProperties": slots, "additionalProperties": {"type": "string"}}  # fmt: skip
        what = "ingredients, laid down in order before this file: [{slot: choice}]; or the recipe that it builds on"
        self.defs |= {"later": _LATER, "defaults": {"description": what, "type": "array", "items": one}}

    def recipe(self) -> Json:
        """The schema of a recipe: one job, its arguments and the keys that every recipe has."""
        jobs = self.found.components_for(Job)
        root = [_when(name, {"if": {"required": ["defaults"]},
                             "then": self._root(name, complete=False),
                             "else": self._root(name, complete=True)}) for name in jobs]  # fmt: skip
        target = {"description": "the job of this recipe", "enum": jobs}
        return {
            "$schema": DRAFT, "title": "A recipe of nemo_vfm",
            "type": "object", "properties": {TARGET: target, "defaults": {"$ref": "#/$defs/defaults"}}, "allOf": root,
            "anyOf": [{"required": [TARGET]}, {"required": ["defaults"], "properties": {
                "defaults": {"contains": {"type": "string"}}}}], "$defs": self.defs,
        }  # fmt: skip

    def ingredient(self, slot: str) -> Json:
        """The schema of `conf/<slot>/*.yaml`; what it leaves out a recipe may give.

        Where no argument is called so, it is a name of the recipe's own, such as that of a callback.
        """
        self.more = {"defaults": {"$ref": "#/$defs/defaults"}}
        arguments = [
            argument for name in self.found.all_components() for argument in describe(self.found.known[name], 0)
        ]
        named = [argument.hint for argument in arguments if argument.name == slot]
        named += [READ_BY_VERBS[slot]] if slot in READ_BY_VERBS else []
        wanted = named or [hint for argument in arguments for hint in _entries(argument.hint)]
        fitting = [hint for hint in wanted if any(map(self._fits, slots_in(hint)))]
        options = _distinct(option for hint in fitting for option in self._options(hint, complete=False))
        mappings = [option for option in options if option.get("type", "object") == "object"]
        title = f"An ingredient for the slot {slot} of nemo_vfm"
        return {"$schema": DRAFT, "title": title, "type": "object", "anyOf": mappings, "$defs": self.defs}

    def _root(self, name: str, *, complete: bool) -> Json:
        key = f"{'complete-' if complete else ''}root:{name}"
        if key not in self.defs:
            reserved = {
                "defaults": {"$ref": "#/$defs/defaults"},
                "run_dir": _value_schema("the run folder; runs/<name of the recipe> if left out", [{"type": "string"}]),
                "seed": _value_schema("the seed of all random numbers", [*_VALUES[int], _REFERENCE], 0),
            }
            whole = {"$ref": f"#/$defs/root:{name}"}
            self.defs[key] = self._complete(name, 0, whole) if complete else self._object_schema(name, 0, reserved)
        return {"$ref": f"#/$defs/{key}"}

    def _component(self, name: str, num_given: int | None, *, complete: bool) -> Json:
        """A reference to a component's definition."""
        key = name if not num_given else f"{name}:{num_given} given"
        for wanted in (key, f"complete-{key}")[: 1 + complete]:
            if wanted not in self.defs:
                self.defs[wanted] = {}  # a component may hold another of its kind
                self.defs[wanted] = (
                    self._object_schema(name, num_given, {})
                    if wanted == key
                    else self._complete(name, num_given, {"$ref": f"#/$defs/{key}"})
                )
        return {"$ref": f"#/$defs/{'complete-' if complete else ''}{key}"}

    def _object_schema(self, name: str, num_given: int | None, more: Json) -> Json:
        """Keys and values."""
        target = self.found.known[name]
        arguments = {
            a.name: self._argument(a, complete=False)
            for a in describe(self.found.known[name], num_given)
            if not a.given
        }
        return {
            "description": summary(target), "type": "object",
            "properties": {TARGET: {"const": name}, **arguments, **more, **self.more},
            **({} if hints.signature(target).open else {"additionalProperties": False}),
        }  # fmt: skip

    def _complete(self, name: str, num_given: int | None, reference: Json) -> Json:
        """The plain definition, what it must have, and the same of the slots below."""
        arguments = [a for a in describe(self.found.known[name], num_given) if not a.given]
        below = {a.name: self._argument(a, complete=True) for a in arguments if any(slots_in(a.hint))}
        return {"allOf": [reference, {"required": [a.name for a in arguments if a.required], "properties": below}]}

    def _argument(self, argument: ArgumentInfo, *, complete: bool) -> Json:
        node = None if argument.required or argument.default is None else node_of(argument.default)
        options = self._options(argument.hint, complete=complete)
        text = ". ".join(part for part in (argument.text.rstrip("."), argument.words) if part)
        return _value_schema(text, [*options, _REFERENCE] if options else [], None if node is None else to_plain(node))

    def _options(self, hint: Any, *, complete: bool) -> list[Json]:
        """What a value may look like, one entry a way; none where anything goes."""
        hint = hints.bare_hint(hint)
        if hints.is_union(hint):
            return _distinct(o for part in get_args(hint) for o in self._options(part, complete=complete))
        if hints.is_factory(hint):
            return [self._slot(slot, complete=complete) for slot in slots_in(hint) if self._fits(slot)]
        if hints.is_open(hint):
            return []
        if get_origin(hint) is Literal:
            return [{"enum": list(get_args(hint))}]
        if hints.is_mapping(hint):
            key, inner = (*get_args(hint), hints.ANYTHING, hints.ANYTHING)[:2]
            names = {"propertyNames": {"enum": known}} if (known := hints.choices(key)) else {}
            allowed = {"properties": dict(self.more)} if self.more else {}
            return [{"type": "object", "additionalProperties": self._within(inner, complete=complete), **names,
                     **allowed, "not": {"required": [TARGET]}}]  # fmt: skip
        if hints.is_list(hint):
            items = [self._within(part, complete=complete) for part in get_args(hint)]
            if not hints.is_fixed(hint):
                return [{"type": "array", "items": items[0] if items else {}}]
            same = len(_distinct(items)) == 1  # older readers do not know prefixItems
            each = {"items": items[0]} if same else {"prefixItems": items} if items else {}
            return [{"type": "array", "minItems": len(items), "maxItems": len(items), **each}]
        if hints.is_component(hint):
            return [self._slot(Slot(hint), complete=complete)] if self._fits(Slot(hint)) else []
        origin = get_origin(hint) or hint
        if isinstance(origin, type) and issubclass(origin, PurePath):
            return [{"type": "string"}]
        if isinstance(origin, type) and issubclass(origin, Enum):
            return [{"enum": [member.value for member in origin]}]
        return list(_VALUES.get(origin, []))

    def _within(self, hint: Any, *, complete: bool) -> Json:
        """One schema for what stands inside a list or a mapping."""
        options = self._options(hint, complete=complete)
        return {"anyOf": [*options, _REFERENCE]} if options else {}

    def _fits(self, slot: Slot) -> bool:
        return _is_lightnings(slot.kind) or bool(self.found.components_for(slot.kind))

    def _slot(self, slot: Slot, *, complete: bool) -> Json:
        """A reference to a slot's definition: one of the components that fit."""
        name = f"{slot.kind.__module__}.{slot.kind.__qualname__}"
        key = f"{'complete-' if complete else ''}slot:{name}" + (f":{slot.num_given} given" if slot.num_given else "")
        if key not in self.defs:
            self.defs[key] = {}
            # A process that has imported Lightning would find its callbacks, one of which takes any key.
            names = [n for n in self.found.components_for(slot.kind) if not n.startswith("lightning.")]
            which = [_when(n, self._component(n, slot.num_given, complete=complete)) for n in names]
            theirs = [_LIGHTNINGS] if _is_lightnings(slot.kind) else []
            target = {"description": "the class", "anyOf": [{"enum": names}, _REFERENCE, *theirs]}
            # A slot of one plain class needs no `_target_`; elsewhere an ingredient below must have given it.
            own = [name for name in names if self.found.known[name] is slot.kind]
            if complete:
                without = self._component(own[0], slot.num_given, complete=True) if own else {"required": [TARGET]}
            else:
                properties: dict[str, list[Json]] = {}
                for argument in (
                    a for name in names for a in describe(self.found.known[name], slot.num_given) if not a.given
                ):
                    properties.setdefault(argument.name, []).append(self._argument(argument, complete=False))
                merged = {name: schemas[0] if len(_distinct(schemas)) == 1 else {"anyOf": _distinct(schemas)}
                          for name, schemas in properties.items()}  # fmt: skip
                closed = not any(hints.signature(self.found.known[name]).open for name in names)
                without = {"properties": {**merged, **self.more}, **({"additionalProperties": False} if closed else {})}
            component = {
                "type": "object", "properties": {TARGET: target},
                "allOf": [*which, {"if": {"not": {"required": [TARGET]}}, "then": without}],
            }  # fmt: skip
            self.defs[key] = {"anyOf": [component, _RECIPE]} if slot.kind is Job else component
        return {"$ref": f"#/$defs/{key}"}


def _is_lightnings(kind: Any) -> bool:
    """Whether a slot is for something of Lightning's making, such as `LightningCallback`."""
    return str(getattr(kind, "__name__", "")).startswith("Lightning")


def _when(name: str, then: Json) -> Json:
    """What holds for one class."""
    return {"if": {"required": [TARGET], "properties": {TARGET: {"const": name}}}, "then": then}


def _value_schema(text: str, options: list[Json], default: object = None) -> Json:
    described = {"description": text, **({} if default is None else {"default": default})}
    return {**described, "anyOf": options} if options else described


def _entries(hint: Any) -> list[Any]:
    """What mappings with names of a recipe's own hold."""
    hint = hints.bare_hint(hint)
    if hints.is_union(hint):
        return [entry for part in get_args(hint) for entry in _entries(part)]
    return [get_args(hint)[1]] if hints.is_mapping(hint) and len(get_args(hint)) == 2 else []


def _distinct(schemas: Iterable[Json]) -> list[Json]:
    found: list[Json] = []
    for schema in schemas:
        if schema not in found:
            found.append(schema)
    return found
