"""Lists the files, folders and addresses that a checked recipe names, each with key, line and component."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.config import hints
from nemo_vfm.config.build import Call, Group, Items, Part, Value
from nemo_vfm.config.recipe_errors import Mark
from nemo_vfm.config.tree import join
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.storage.write_path import Written


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path in a recipe.

    Args:
        key: its dotted address.
        mark: where it is written.
        place: what it names.
        owner: dotted name of the component that takes it.
        argument: by which name.
        secret: True where it came from the environment, so that no message may show it.
        is_written: whether the component writes it, see `WritePath`.
    """

    key: str
    mark: Mark
    place: Place
    owner: str
    argument: str
    secret: bool = False
    is_written: bool = False


def named_paths(part: Part) -> list[NamedPath]:
    """All of them, in the recipe's order; of what is taken only where another is not given, those that are taken."""
    return list(_below(part, "", "", ""))


def _below(part: Part, key: str, owner: str, argument: str, *, is_written: bool = False) -> Iterator[NamedPath]:
    if isinstance(part, Value):
        if isinstance(part.value, Place) and part.node is not None:
            yield NamedPath(key, part.node.mark, part.value, owner, argument, part.node.secret, is_written)
    elif isinstance(part, Call):
        name = f"{part.target.__module__}.{part.target.__qualname__}"
        known = hints.signature(part.target).arguments
        for called, below in part.arguments.items():
            if not (called == "otherwise" and _is_given(part.arguments.get("path"))):
                is_written = called in known and hints.says(known[called].hint, Written)
                yield from _below(below, join(key, called), name, called, is_written=is_written)
    elif isinstance(part, Group | Items):
        parts = part.parts.items() if isinstance(part, Group) else enumerate(part.parts)
        for one, below in parts:
            yield from _below(below, join(key, str(one)), owner, argument, is_written=is_written)


def _is_given(part: Part | None) -> bool:
    return isinstance(part, Value) and isinstance(part.value, Path | str)
