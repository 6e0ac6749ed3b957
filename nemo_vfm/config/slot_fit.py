"""Finds the trusted class or function that `_target_` names, and checks that it fits the type of its slot."""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import starmap
from typing import Any, Literal, get_args, get_origin, is_typeddict

from nemo_vfm.config import hints
from nemo_vfm.config.locate import NotLocated, Target, is_trusted, is_users, locate
from nemo_vfm.config.roots import Roots, no_ingredient
from nemo_vfm.config.tree import TARGET, Map, Node, Scalar, child
from nemo_vfm.core.types.job import Job


def choose_target(
    written: Node | None, hint: Any, trust: Sequence[str], *, is_root: bool = False, is_partial: bool = False
) -> Target:
    """The trusted class or function that makes what a slot asks for.

    Args:
        written: the node behind `_target_`; None where there is none, then the slot's own class is taken.
        hint: the slot's annotation.
        is_root: the slot is the recipe itself.
        is_partial: it is called later, by the class whose slot this is.

    Raises:
        NotLocated: there is none, it is not trusted, or it makes something else.
    """
    if written is None:
        return _own_class(hint, trust, is_root)
    if not isinstance(written, Scalar) or not isinstance(written.value, str):
        raise NotLocated(f"{TARGET} must be the dotted name of a class")
    if written.secret:  # whoever sets the environment would choose the code, and a message would show the value
        raise NotLocated(f"{TARGET} must be written in the recipe; it cannot come from the environment")
    target = locate(written.value, trust)
    says_nothing = is_partial or hints.is_open(hint) or hints.is_open(hints.returns(target))
    is_users_function = not inspect.isclass(target) and is_users(target, written.value, trust)
    if is_root or not (is_users_function and says_nothing):  # whoever trusts a function knows what it makes
        name, made = target.__qualname__, hints.returns(target)
        if hints.is_protocol(target) or inspect.isabstract(target):
            raise NotLocated(f"{name} is an interface; name a class that implements it")
        origin = get_origin(made) or made
        is_class = hints.is_component(origin) and not hints.is_mapping(origin) and not hints.is_list(origin)
        # A text has a method `split` and a path has `open`: either would pass for a component with such a method.
        others = {*sys.stdlib_module_names, "numpy"}
        is_value = not is_class or str(origin.__module__).partition(".")[0] in others
        if inspect.isfunction(target) and not hints.is_open(made) and is_value:
            raise NotLocated(f"{name} is a function that returns {hints.in_words(made)}, not a component")
        if hints.is_open(made) or not fits(made, hint):
            words = "a Job, as the root of a recipe must be" if is_root else hints.in_words(hint)
            raise NotLocated(f"{name} is not {words}{_why_not(made, hint)}")
    return target


def takes_values_only(root: Map, address: str, trust: Sequence[str]) -> bool:
    """Whether an argument takes plain values and no component; False where no trusted class says what it takes."""
    hint = _hint_at(root, address, trust)
    return hint is not None and all(hints.is_open(one) or not _takes_mappings(one) for one in _alternatives(hint))


def word_refusal(root: Map, address: str, word: str, roots: Roots, trust: Sequence[str]) -> str:
    """Why a word that names no ingredient cannot take a component's place; empty where it may be a value there."""
    hint, targets = _hint_at(root, address, trust), roots.targets(address)
    if hint is None or hints.is_open(hint):
        return no_ingredient(address, word, list(targets)) if targets else ""
    kinds = [one for one in _alternatives(hint) if one is not type(None)]
    only_mappings = all(_takes_mappings(one) and not hints.is_open(one) for one in kinds)
    if word in hints.choices(hint) or not (targets or only_mappings):
        return ""
    if known := fitting_ingredients(targets, hint, trust):
        return no_ingredient(address, word, known)
    if advice := lost_braces(address, word):
        return f"{word} is not a mapping{advice}"
    folder = f"conf/{address.rpartition('.')[2]}"
    there = f"nothing in {folder} fits here" if targets else f"there is no folder {folder}"
    other = f"set a key, {address}.KEY=VALUE, or name a class, {address}._target_=CLASS"
    return f"{there}, so {word} is not a choice; {other}"


def lost_braces(address: str, word: str) -> str:
    """What to type where a shell made `KEY={a:1,b:2}` two words; empty for any other word."""
    joined = re.fullmatch(r"([\w-]+):(?!//)(.+)", word)
    change = f"'{address}={{{joined[1]}: {joined[2]}}}'" if joined else ""
    return f"; the shell strips unquoted braces, so quote the whole change: {change}" if joined else ""


def fitting_ingredients(targets: Mapping[str, str], hint: Any, trust: Sequence[str]) -> list[str]:
    """Of ingredients, with the class of each, those that may stand in a slot."""
    kinds = [hints.factory_parts(one)[1] if hints.is_factory(one) else one for one in _alternatives(hint)]
    found = []
    for choice, name in targets.items():
        made = hints.ANYTHING
        with suppress(NotLocated, TypeError):  # whether it fits is seen when it is used
            made = hints.returns(locate(name, trust)) if name else made
            if not (hints.is_open(made) or any(fits(made, kind) for kind in kinds)):
                continue
        found.append(choice)
    return found


def _hint_at(root: Map, address: str, trust: Sequence[str]) -> Any:
    """The annotation of an address; None where no trusted class has one."""
    node: Node | None = root
    hint: Any = Job
    for key in address.split("."):  # of what stands in a slot, or may stand there
        options = _alternatives(hint)
        group = next(filter(hints.is_mapping, options), None)
        made = [hints.factory_parts(one)[1] if hints.is_factory(one) else one for one in options]
        try:
            if name := node.target() if isinstance(node, Map) else None:
                hint = hints.signature(locate(name, trust)).arguments[key].hint
            elif group is not None:
                hint = (*get_args(group), hints.ANYTHING, hints.ANYTHING)[1]
            else:
                kind = next(filter(hints.is_component, made), hints.ANYTHING)
                hint = hints.signature(_own_class(kind, trust, is_root=False)).arguments[key].hint
        except (NotLocated, TypeError, KeyError):
            return None
        node = None if node is None else child(node, key)
    return hint


def _alternatives(hint: Any) -> list[Any]:
    inner = hints.bare_hint(hint)
    return [hints.bare_hint(one) for one in hints.options(inner)] if hints.is_union(inner) else [inner]


def _takes_mappings(hint: Any) -> bool:
    return hints.is_factory(hint) or hints.is_mapping(hint) or hints.is_list(hint) or hints.is_component(hint)


def _own_class(hint: Any, trust: Sequence[str], is_root: bool) -> Target:
    """The class of the annotation, where it can be made and is trusted as if its name had been written."""
    if inspect.isclass(hint) and not (hints.is_protocol(hint) or inspect.isabstract(hint)) and is_trusted(hint, trust):
        kind: Target = hint
        return kind
    words = "a job" if is_root else hints.in_words(hint)
    raise NotLocated(f"{TARGET} is missing: name the class that builds {words}")


def fits(made: Any, hint: Any) -> bool:
    """Whether what a target makes may stand where `hint` is asked for."""
    hint = hints.bare_hint(hint)
    if hints.is_open(hint):
        return True
    if hints.is_union(hint):
        return any(fits(made, option) for option in get_args(hint))
    origin, made = get_origin(hint) or hint, get_origin(made) or made
    if not inspect.isclass(made) or not inspect.isclass(origin):
        return False
    if hints.is_protocol(origin):
        return not (_missing_methods(made, origin) or _differing_methods(made, origin))
    return issubclass(made, origin)


def _why_not(made: Any, hint: Any) -> str:
    """Which method of a protocol a class lacks, or has with another meaning."""
    hint = hints.bare_hint(hint)
    protocol, made = get_origin(hint) or hint, get_origin(made) or made
    if not hints.is_protocol(protocol):
        return ""
    if without := _missing_methods(made, protocol):
        return f": it has no {', '.join(without)}"
    return f": its {_differing_methods(made, protocol)[0]}"


def _missing_methods(made: Any, protocol: type) -> list[str]:
    """The methods of a protocol that a class does not have."""
    return [name for name in _methods(protocol) if not _has(made, name)]


def _differing_methods(made: Any, protocol: type) -> tuple[str, ...]:
    """The methods that a class has under the names of a protocol's and that mean something else, each with why."""
    wanted = {name: getattr(protocol, name) for name in _methods(protocol) if _has(made, name)}
    found = {name: _difference(made, name, method) for name, method in wanted.items()}
    return tuple(f"{name} {why}" for name, why in found.items() if why)


def _difference(made: Any, name: str, wanted: Target) -> str:
    """What a method takes or gives that no object of the slot's kind would; empty where nothing is known of it."""
    own = getattr(made, name)
    is_method = inspect.isfunction(inspect.getattr_static(made, name))
    given = list(inspect.signature(wanted).parameters.values())[0 if is_method else 1 :]
    by_name = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
    try:
        bound = inspect.signature(own).bind(*(p for p in given if p.kind <= p.POSITIONAL_OR_KEYWORD), **by_name)
    except TypeError:
        return "takes other arguments"
    except ValueError:  # it is written in C and does not say
        return ""
    types, wanted_types = _method_types(own), _method_types(wanted)
    pairs = [(key, p.name) for key, p in bound.arguments.items() if isinstance(p, inspect.Parameter)]
    for key, wanted_key in pairs:
        if not _may_meet(types.get(key, hints.ANYTHING), wanted_types.get(wanted_key, hints.ANYTHING)):
            return f"takes {hints.in_words(types[key])} but would get {hints.in_words(wanted_types[wanted_key])}"
    gives, asked = types.get("return", hints.ANYTHING), wanted_types.get("return", hints.ANYTHING)
    return "" if _may_meet(gives, asked) else f"returns {hints.in_words(gives)}; expected {hints.in_words(asked)}"


@cache
def _method_types(method: Target) -> Mapping[str, Any]:
    """The annotations of a method; none where a decorator may have changed what it gives."""
    method = getattr(method, "__func__", method)
    changed = hasattr(method, "__wrapped__") or inspect.iscoroutinefunction(method)
    return {} if changed or not inspect.isfunction(method) else hints.resolved_alone(method, method)


def _may_meet(one: Any, other: Any) -> bool:
    """Whether some value, not an empty one, may be of both types; True where that is not known.

    A type checker asks for more, but whoever wrote a class without one may have called a list a sequence or an
    iterator an iterable.
    """
    one, other = hints.bare_hint(one), hints.bare_hint(other)
    parts, others = _alternatives(one), _alternatives(other)
    if len(parts) > 1 or len(others) > 1:
        return any(_may_meet(part, another) for part in parts for another in others)
    kind, other_kind = _kind(one), _kind(other)
    if kind is None or other_kind is None or {kind, other_kind} <= {int, float, complex}:
        return True
    for first, second in ((kind, other_kind), (other_kind, kind)):
        if issubclass(first, second) if not hints.is_protocol(second) else not _missing_methods(first, second):
            break
    else:
        return False
    holds_others = kind is other_kind or (issubclass(kind, Iterable) and issubclass(other_kind, Iterable))
    return not holds_others or all(starmap(_may_meet, zip(get_args(one), get_args(other), strict=False)))


def _kind(hint: Any) -> Any:
    """The class of an annotation; None where it says nothing that can be compared."""
    if hints.is_open(hint):
        return None
    if get_origin(hint) is Literal:
        kinds = {type(value) for value in get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else None
    kind = dict if is_typeddict(hint) else get_origin(hint) or hint
    return kind if inspect.isclass(kind) else None


def _has(made: Any, name: str) -> bool:
    """Whether objects of a class have a method; a class itself can always be called, which says nothing of them."""
    return name in member_names(made) and callable(getattr(made, name, None))


@cache
def member_names(made: Any) -> frozenset[str]:
    """What a class and its bases define."""
    return frozenset(name for base in getattr(made, "__mro__", ()) for name in vars(base))


@cache
def required_methods(hint: Any) -> frozenset[str]:
    """The methods without which nothing fits: a protocol's. A quick first look for whoever asks of many classes."""
    kind: Any = get_origin(hint) or hint
    return frozenset(_methods(kind)) if hints.is_protocol(kind) else frozenset()


@cache
def _methods(protocol: type) -> tuple[str, ...]:
    homes = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False) and base.__name__ != "Protocol"]
    names = {name for base in homes for name, value in vars(base).items() if inspect.isfunction(value)}
    return tuple(sorted(name for name in names if name == "__call__" or not name.startswith("_")))
