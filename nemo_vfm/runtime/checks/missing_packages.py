"""Finds the optional packages that a recipe needs and that are not installed here, before it runs."""

from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.config import ComposedRecipe, needs, read_values
from nemo_vfm.core.errors import MissingPackage
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.optional import available, install_line
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.workflow import unfinished_steps

Missing = list[tuple[str, str]]  #: (module, dotted key of the component that needs it; empty for the root)


def missing_packages(composed: ComposedRecipe, trust: Sequence[str], permissions: Permissions) -> Missing:
    """Missing modules of all components, also those that only a GPU needs."""
    return [(module, path) for path, need in needs(composed, trust, permissions)
            for module in need.modules if not available(module)]  # fmt: skip


def missing_now(
    composed: ComposedRecipe, job: Job, folder: Path, trust: Sequence[str], permissions: Permissions
) -> Missing:  # fmt: skip
    """Missing modules without which a run on this machine would fail; steps that are done in `folder` need none."""
    found = [(module, path) for path, need in needs(composed, trust, permissions) for module in need.modules
             if not available(module) and (not need.on_gpu or _has_gpu())]  # fmt: skip
    if not found:
        return []
    settings = read_values(composed.to_yaml(conceal_keys), "this recipe")
    unfinished = tuple(unfinished_steps(job, Run(folder, settings, composed.seed)))
    return [(module, path) for module, path in found if f"{path}.".startswith(unfinished)]


def refuse_missing(found: Missing) -> None:
    """Raise MissingPackage, with one command that installs all, unless `found` is empty."""
    if found:
        raise MissingPackage(f"{describe_missing(found)}\nNothing was run.")


def describe_missing(found: Missing) -> str:
    """A sentence: what is missing, where the recipe needs it, and the command that installs it."""
    users: dict[str, dict[str, None]] = {}
    for module, path in found:
        users.setdefault(module, {})[path or "the recipe"] = None
    named = ", ".join(f"{module} ({next(iter(paths))}" + (f" and {len(paths) - 1} more)" if len(paths) > 1 else ")")
                      for module, paths in users.items())  # fmt: skip
    return f"not installed here: {named}. Install: {install_line(users)}"


def _has_gpu() -> bool:
    from nemo_vfm.core.device import device

    return device().type == "cuda"
