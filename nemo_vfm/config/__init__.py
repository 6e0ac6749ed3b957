"""Reads, composes and checks recipes and builds objects from them. Knows nothing of video, models or GPUs.

Only the command line and the launcher import this room. No component ever sees a node of a recipe's tree.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nemo_vfm.config.build import BoundFactory, Call, Part, make, walk_parts
from nemo_vfm.config.build import needs as needs_of
from nemo_vfm.config.compose import RESERVED, ComposedRecipe, compose
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.locate import DEFAULT_TRUST, trust_list
from nemo_vfm.config.recipe_errors import Mark, Problem, RecipeError, SourceText
from nemo_vfm.config.recipe_paths import NamedPath, is_free, named_paths, unmade_paths
from nemo_vfm.config.recipients import RecipientEntry, environment_values, list_recipients, not_allowed
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import Map, to_plain
from nemo_vfm.config.yaml_source import parse, read
from nemo_vfm.core.network.permission import NOTHING, Permissions
from nemo_vfm.core.optional import Need
from nemo_vfm.core.recipe_keys import with_new_keys

__all__ = [
    "DEFAULT_TRUST",
    "BoundFactory",
    "ComposedRecipe",
    "Mark",
    "NamedPath",
    "Problem",
    "RecipeError",
    "RecipientEntry",
    "Roots",
    "SourceText",
    "build",
    "build_part",
    "check",
    "compose",
    "factories",
    "ingredient",
    "needs",
    "paths",
    "read_values",
    "recipients",
    "trust_list",
    "writes_outside",
]  # fmt: skip


T = TypeVar("T")


def check(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[Problem]:
    """Everything that is wrong or missing, file by file from top to bottom; no job is built. `trust`: see `locate`."""
    return _examine(composed, trust, permissions)[0]


def build(composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING) -> Any:
    """The job that a recipe describes.

    Raises:
        RecipeError: something is wrong or missing, or a constructor refused its arguments.
    """
    problems, part, _ = _examine(composed, trust, permissions)
    if problems:
        raise RecipeError(problems)
    return make(part)


def build_part(
    composed: ComposedRecipe, address: str, given: Mapping[str, Any], trust: Sequence[str], permissions: Permissions
) -> Any:
    """What the part at a dotted address describes (empty: the whole); the rest of the recipe may be wrong.

    Raises:
        RecipeError: something in this part is wrong or missing, or a constructor refused its arguments.
    """
    problems, part, _ = _examine(composed, trust, permissions, address, tuple(given))
    within = [one for one in problems if not address or f"{one.path}.".startswith(f"{address}.")]
    if within:
        raise RecipeError(within)
    assert isinstance(part, Call)
    return BoundFactory(part)(**given)


def factories(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[BoundFactory]:
    """Everything that the recipe's jobs build later, such as models; each once, where nothing of it is missing."""
    problems, part, _ = _examine(composed, trust, permissions)
    wrong = [f"{problem.path}." for problem in problems]
    calls = [one for _, one in walk_parts(part) if isinstance(one, Call) and one.is_factory]
    found = {repr(call.node): call for call in reversed(calls)
             if not any(path.startswith(f"{call.path}.") for path in wrong)}  # fmt: skip
    return [BoundFactory(call) for call in reversed(found.values())]


def needs(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[tuple[str, Need]]:
    """(address, what it needs) of every component that declares it, as far as the recipe is right."""
    return list(needs_of(_examine(composed, trust, permissions)[1]))


def recipients(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[RecipientEntry]:
    """Everybody who would get something from a run, as far as the recipe is right, and what is read from the
    environment."""
    _, part, tree = _examine(composed, trust, permissions)
    return list_recipients(part, tree, permissions)


def paths(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[NamedPath]:
    """The files, folders and addresses that the recipe names, as far as it is right."""
    return list(named_paths(_examine(composed, trust, permissions)[1]))


def writes_outside(
    composed: ComposedRecipe, trust: Sequence[str] = DEFAULT_TRUST, permissions: Permissions = NOTHING
) -> list[Path]:
    """What the recipe writes where only the user may let it: whole paths, in the recipe's order."""
    named, run_dir = paths(composed, trust, permissions), _run_dir(composed)
    found = [Path.cwd() / one.place for one in named if one.written and isinstance(one.place, Path)]
    return [path for path in found if not is_free(path, run_dir)]


def ingredient(
    slot: str, choice: str, kind: type[T], conf: Sequence[Path] = (), trust: Sequence[str] = DEFAULT_TRUST
) -> T:
    """What `conf/<slot>/<choice>.yaml` describes, by itself; the folders of `conf` are searched before the others.

    Raises:
        RecipeError: there is no such file, or something is wrong in it.
    """
    from nemo_vfm.config.recipe_check import Checker

    roots = Roots.standard(conf)
    asked = Mark(SourceText.from_word(choice))
    tree, problems = resolve(read(roots.require_ingredient(slot, choice, asked)))
    checker = Checker(trust, roots.targets)
    part = checker.node(tree, kind, "", tree.mark)
    if found := [*problems, *checker.problems]:
        raise RecipeError(found)
    made: T = make(part)
    return made


def read_values(text: str, name: str) -> Any:
    """The plain values of a recipe's text, as written by `ComposedRecipe.to_yaml` of this version or an earlier."""
    return with_new_keys(to_plain(parse(text, name)))


def _examine(
    composed: ComposedRecipe, trust: Sequence[str], permissions: Permissions, part_at: str | None = None,
    given: Sequence[str] = (),
) -> tuple[list[Problem], Part, Map]:  # fmt: skip
    """Everything that is wrong, what to build, and the resolved tree; `check` and `run` ask five times."""
    from nemo_vfm.config.recipe_check import Checker  # it brings pydantic: 60 ms that `list` and `show` need not wait

    known = (tuple(trust), permissions, part_at, tuple(given), hash(frozenset(os.environ.items())))
    if known in composed.examined:
        problems, part, tree = composed.examined[known]
        return list(problems), part, tree
    tree, unresolved = resolve(composed.root)
    permissions = replace(permissions, withheld=environment_values(tree))
    checker = Checker(trust, composed.roots.targets, permissions, _run_dir(composed))
    whole = tree.without(*RESERVED)
    part = checker.root(whole) if part_at is None else checker.part(whole, part_at, given)
    # A node that is used in two places through ${...} is wrong in one.
    missing = [replace(one, message=f"{one.message}{composed.makers.get(one.path, '')}") for one in checker.problems]
    found = [*unresolved, *missing]
    for key in RESERVED if not unresolved else ():
        try:
            getattr(composed, key)
        except RecipeError as error:
            found += error.problems
    found += not_allowed(part, permissions, found)
    if checker.run_dir is not None:
        found += unmade_paths(part, checker.run_dir)
    once: dict[tuple[object, ...], Problem] = {}  # of several that say the same, the first stays
    for problem in reversed(found):
        mark = problem.mark  # a file may be read twice, and words of the command line share a name
        source = mark.source.name if mark.source.is_file else id(mark.source)
        once[source, mark.line, mark.column, problem.message] = problem
    files = list(dict.fromkeys(problem.mark.source.name for problem in once.values()))
    problems = sorted(once.values(), key=lambda p: (files.index(p.mark.source.name), p.mark.line, p.mark.column))
    if all(problem.kind == "missing" for problem in problems):  # what is wrong, such as a class, may change meanwhile
        composed.examined[known] = problems, part, tree
    return list(problems), part, tree


def _run_dir(composed: ComposedRecipe) -> Path | None:
    """The run folder, or None where no run may be kept there; whoever runs the recipe is told why."""
    try:
        return composed.run_dir
    except RecipeError:
        return None
