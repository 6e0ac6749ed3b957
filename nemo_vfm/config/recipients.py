"""Lists who would receive data from a recipe, and refuses buckets that only the recipe names."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nemo_vfm.config.build import Call, Part, Value, make, walk_parts
from nemo_vfm.config.recipe_errors import Problem, RecipeError
from nemo_vfm.config.tree import Map, Scalar, walk
from nemo_vfm.core.network.permission import Permissions, Recipient, Sends
from nemo_vfm.core.storage.uri import Address

COPIES = "copy_to"  #: every other slot of an address is read


@dataclass(frozen=True, slots=True)
class RecipientEntry:
    """A recipient, and where the recipe has it; or a variable of the environment that the recipe takes."""

    recipient: Recipient | None  #: who gets what; None for a variable, which goes nowhere by itself
    variable: str  #: the name; empty for a recipient
    paths: tuple[str, ...]  #: addresses in the recipe

    def __str__(self) -> str:
        where = ", ".join(self.paths[:3]) + (f" and {len(self.paths) - 3} more" if len(self.paths) > 3 else "")
        if self.recipient is None:
            return f"the variable {self.variable} is read for {where}"
        one = self.recipient
        key = f", with {' and '.join(one.variables)} of your environment" if one.variables else ", without a key"
        return f"{one.place} gets {one.gets}{key} ({where}; {one.source})"


def environment_values(tree: Map) -> tuple[tuple[str, str], ...]:
    """(variable, value) of everything that a resolved recipe takes from the environment."""
    found = {(origin.removeprefix("env:"), text): None for _, text, origin in _of_environment(tree)}
    return tuple(found)


def not_allowed(part: Part, permissions: Permissions, known: Sequence[Problem]) -> Iterator[Problem]:
    """A problem for each recipient whom neither the command line, nor the environment, nor the user's file names.

    A component that has one of the `known` problems is not asked.
    """
    for path, call in _network_components(part):
        try:
            if not any(f"{problem.path}.".startswith(f"{path}.") for problem in known):
                make(call)
        except RecipeError as error:
            yield from error.problems
    for path, node, address in _addresses(part):
        place = f"{address.scheme}://{address.bucket}"
        if not (permissions.allows(place) or _is_users(node, place)):
            yield Problem(path, node.mark, permissions.refusal(place))


def list_recipients(part: Part, tree: Map, permissions: Permissions) -> list[RecipientEntry]:
    """Everybody who gets something, then the variables that are read."""
    from nemo_vfm.core.storage.object_store import service

    found: dict[Recipient, list[str]] = {}
    for path, call in _network_components(part):
        with suppress(RecipeError):  # a problem of its own
            for recipient in make(call).recipients():
                found.setdefault(recipient, []).append(path)
    for path, node, address in _addresses(part):
        place = f"{address.scheme}://{address.bucket}"
        origin_text = next(origin for text, origin in node.origins() if text) if _is_users(node, place) else ""
        source = {"user": "the command line", "": "allowed by you" if permissions.allows(place) else "not allowed"}
        by = source.get(origin_text, origin_text.removeprefix("env:"))
        host, signing = service(address.scheme)
        gets = "what the run makes" if path.rpartition(".")[2] == COPIES else "requests to read"
        found.setdefault(Recipient(place, f"{gets}, by way of {host}", signing, by), []).append(path)
    variables: dict[str, list[str]] = {}
    for path, _, origin in _of_environment(tree):
        variables.setdefault(origin.removeprefix("env:"), []).append(path)
    return [
        *(RecipientEntry(one, "", tuple(dict.fromkeys(paths))) for one, paths in found.items()),
        *(RecipientEntry(None, name, tuple(dict.fromkeys(paths))) for name, paths in variables.items()),
    ]


def _of_environment(tree: Map) -> Iterator[tuple[str, str, str]]:
    """(address, text, `env:NAME`) of each piece."""
    for path, node in walk(tree):
        for text, origin in node.pieces if isinstance(node, Scalar) else ():
            if origin.startswith("env:"):
                yield path, text, origin


def _addresses(part: Part) -> Iterator[tuple[str, Scalar, Address]]:
    for path, one in walk_parts(part):
        if isinstance(one, Value) and isinstance(one.value, Address) and one.node is not None:
            yield path, one.node, one.value


def _is_users(node: Scalar, place: str) -> bool:
    """Whether the user gave the whole of scheme and bucket in one piece: `s3://${env:TERM}` is the recipe's."""
    text, origin = next(((text, origin) for text, origin in node.origins() if text), ("", "recipe"))
    return origin != "recipe" and (text == place or text.startswith(f"{place}/"))


def _network_components(part: Part) -> Iterator[tuple[str, Call]]:
    """The components that reach the network by themselves; one that is made later says so then."""
    for path, one in walk_parts(part):
        if not isinstance(one, Call) or one.is_factory or one.is_partial:
            continue
        if inspect.isclass(one.target) and issubclass(one.target, Sends):
            yield path, one
