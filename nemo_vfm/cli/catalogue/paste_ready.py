"""Writes a component as YAML for a recipe: every argument with its default, or `???` and what fits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args, is_typeddict

from nemo_vfm.cli.catalogue.components import Catalogue, slots_in
from nemo_vfm.cli.catalogue.constructor_arguments import Described, describe, node_of, words
from nemo_vfm.config import hints
from nemo_vfm.config.emit import NOWHERE, to_yaml
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar

_WIDEST = 56  # a comment behind a longer line is not aligned with the others
_DEEPEST = 6
Line = tuple[str, str]


def ready(found: Catalogue, name: str, values: Mapping[str, Node] | None = None) -> str:
    """The text.

    Args:
        values: what an ingredient says; they stand in the place of defaults.
    """
    lines = list(_component(found, name, dict(values or {}), 0))
    width = max((len(text) for text, comment in lines if comment and len(text) <= _WIDEST), default=0)
    shown = (f"{text:<{width}}  # {comment}" if comment else text for text, comment in lines)
    return "".join(f"{line}\n" for line in shown)


def num_given(found: Catalogue, name: str) -> int | None:
    """How many arguments the slots that a component fits give by position later."""
    counts = [slot.num_given for slot in found.slots_for(name) if slot.later]
    return None if None in counts else max((count for count in counts if count is not None), default=0)


def choices(found: Catalogue, argument: Described) -> list[str]:
    """The components that fit an argument, in order."""
    return list(dict.fromkeys(name for slot in slots_in(argument.hint) for name in found.filling(slot.kind)))


def _component(found: Catalogue, name: str, values: dict[str, Node], depth: int) -> Iterator[Line]:
    if not is_typeddict(found.known[name]):  # that is what its keys are, not what makes it
        yield f"{TARGET}: {name}", ""
    for argument in describe(found.known[name], num_given(found, name)):
        if argument.name in values:
            yield from _chosen(found, argument, values.pop(argument.name))
        elif argument.given:
            yield f"# {argument.name}: given by the job, when it is made", ""
        else:
            yield from _argument(found, argument, depth)
    for key, node in values.items():
        if key != TARGET:
            yield from _lines(key, node)


def _chosen(found: Catalogue, argument: Described, node: Node) -> Iterator[Line]:
    """What an ingredient says."""
    if isinstance(node, Scalar) and node.value == MISSING:
        yield f"{argument.name}: {MISSING}", _wanted(argument, choices(found, argument))
    else:
        yield from _lines(argument.name, node)


def _argument(found: Catalogue, argument: Described, depth: int) -> Iterator[Line]:
    fitting = choices(found, argument)
    if not argument.required:
        yield from _default(argument, fitting)
    elif len(fitting) == 1 and _is_one(argument) and depth < _DEEPEST:
        yield f"{argument.name}:", ""
        for text, comment in _component(found, fitting[0], {}, depth + 1):
            yield f"  {text}", comment
    else:
        yield f"{argument.name}: {MISSING}", _wanted(argument, fitting)


def _default(argument: Described, fitting: list[str]) -> Iterator[Line]:
    node = node_of(argument.default)
    if node is None:
        yield f"# {argument.name}: may be left out", ""
        return
    lines = list(_lines(argument.name, node))
    yield lines[0][0], _wanted(argument, fitting) if argument.default is None else ""
    yield from lines[1:]


def _lines(key: str, node: Node) -> Iterator[Line]:
    for line in to_yaml(Map({key: node}, NOWHERE)).splitlines():
        yield line, ""


def _is_one(argument: Described) -> bool:
    """Whether the argument takes one component: not several, by name or in a list."""
    hint = hints.bare(argument.hint)
    options = [hints.bare(option) for option in (get_args(hint) if hints.is_union(hint) else [hint])]
    return not any(hints.is_mapping(option) or hints.is_list(option) for option in options)


def _wanted(argument: Described, fitting: list[str]) -> str:
    short, text = short_names(fitting), words(argument.hint)
    return (
        text if not short or text.removesuffix(" or null").endswith(f" {short[0]}") else f"{text}: {', '.join(short)}"
    )


def short_names(names: Sequence[str]) -> list[str]:
    """What stands behind the last dot."""
    return [name.rpartition(".")[2] for name in names]
