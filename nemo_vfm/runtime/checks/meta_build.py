"""Builds a recipe's models and optimizers on the meta device, to report invalid numbers before a run."""

import sys
from inspect import signature
from typing import TYPE_CHECKING

from nemo_vfm.config import BoundFactory, Problem, RecipeError, build, factories, hints
from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.config.roots import shipped_folder
from nemo_vfm.config.tree import find, walk
from nemo_vfm.config.yaml_source import read
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.types.job import Job, needs_of
from nemo_vfm.runtime.checks.pipeline_folders import schedulers_that_differ
from nemo_vfm.workflow import jobs_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nemo_vfm.config import ComposedRecipe
    from nemo_vfm.core.network.permission import Permissions

_RESULT_OF_NUMBERS = (ArithmeticError, IndexError, MemoryError, RuntimeError, TypeError, ValueError)
_NEEDS_VALUES = ("meta tensor", "Meta tensor", "'meta'")  # of a class that reads its weights while it is built


def build_on_meta(composed: "ComposedRecipe", trust: "Sequence[str]", permissions: "Permissions") -> Job:
    """The job of a recipe that is right as far as it can be known without running it."""
    job: Job = build(composed, trust, permissions)
    if problems := refusals(composed, job, trust, permissions):
        raise RecipeError(problems)
    for text in schedulers_that_differ(job):
        warn(text)
    return job


def refusals(
    composed: "ComposedRecipe", job: Job | None, trust: "Sequence[str]", permissions: "Permissions"
) -> list[Problem]:  # fmt: skip
    """What constructors refuse of all that is built later; where they refuse nothing, what does not fit together.

    The job is None where too much of the recipe is still to be given.
    """
    tried = [problem for factory in factories(composed, trust, permissions) for problem in _find_problems(factory)]
    if tried or job is None:
        return tried
    from nemo_vfm.runtime.checks.part_compatibility import misfits
    from nemo_vfm.runtime.checks.vocabularies import vocabularies

    made = vocabularies(job, composed.run_dir)
    first = {text: at for at, text in reversed(list(misfits(job, made)))}  # one node may serve several steps
    unlike = [Problem(".".join(at), composed.mark_at(at), text) for text, at in reversed(first.items())]
    return [*unlike, *unread_names(composed, job)]


def unread_names(composed: "ComposedRecipe", whole: Job) -> "Iterator[Problem]":
    """Names in a job's mappings that nothing reads, such as a misspelt prompt: what stands there would be lost.

    Each that no ingredient of ours has, since those serve several jobs, and each of which something was typed.
    """
    for step, job in jobs_in(whole):
        for argument, names in needs_of(job).names_read.items():
            for name in sorted(getattr(job, argument).keys() - names):
                address = (*step, argument, name)
                node = find(composed.root, path := ".".join(address))
                typed = [] if node is None else [one.mark for _, one in walk(node) if one.mark.source.is_typed]
                files = (shipped_folder("conf") / argument).rglob("*.yaml")
                if typed or all(name not in read(file).items for file in files):
                    text = f"nothing reads {path}: this job reads {', '.join(sorted(names)) or 'none'}"
                    mark = typed[0] if typed else composed.mark_at(address)
                    yield Problem(path, mark, text + did_you_mean(name, names))


def _find_problems(factory: BoundFactory) -> "Sequence[Problem]":
    made = hints.returns(factory.call.target)
    if any(base.__module__.partition(".")[0] == "pytorch_lightning" for base in getattr(made, "__mro__", ())):
        return factory.error(f"{made.__qualname__} uses classes of pytorch_lightning, but recipes train with "
                             f"lightning.pytorch, whose classes are different; where it is defined, import them from "
                             f"lightning.pytorch (import lightning.pytorch as pl)").problems  # fmt: skip
    try:
        _try(factory)
    except RecipeError as error:
        return [] if _of_files(error) else error.problems
    except _RESULT_OF_NUMBERS as error:
        if isinstance(error, NotImplementedError) or any(word in str(error) for word in _NEEDS_VALUES):
            return []
        first_line = str(error).strip().splitlines()[:1]
        return factory.error(f"{factory.call.target.__qualname__} cannot be built of these numbers: "
                             f"{(first_line or [type(error).__name__])[0]}").problems  # fmt: skip
    return []


def _of_files(error: BaseException) -> bool:
    """Whether it comes from a file that could not be read: an earlier step, or the user, may still put it there."""
    below = error.__cause__ or error.__context__
    return below is not None and (isinstance(below, OSError | UserError) or _of_files(below))


def _try(factory: BoundFactory) -> None:
    """Build it where that reads nothing: a function that makes a model may read a folder."""
    torch, target = sys.modules.get("torch"), factory.call.target  # not imported: then the target is nothing of torch's
    kind = hints.returns(target)
    if torch is None or not isinstance(kind, type):
        return
    if issubclass(kind, torch.nn.Module) and kind is target:
        from nemo_vfm.parallel.plan.static_memory import on_meta

        try:
            signature(target).bind(**factory.call.arguments)
        except TypeError:  # the job gives it arguments when it makes one; what the recipe lacks was reported before
            return
        on_meta(factory)
    elif issubclass(kind, torch.optim.Optimizer):
        from nemo_vfm.core.without_compiler import without_compiler

        with without_compiler():  # fused ones refuse meta tensors, and ask for a matrix
            factory([("weight", torch.nn.Parameter(torch.zeros(2, 3)))])
