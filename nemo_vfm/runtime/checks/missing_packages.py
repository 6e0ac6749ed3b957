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

Missing = list[tuple[str, str]]  #: (module, address of the component that needs it)


def missing_packages(composed: ComposedRecipe, trust: Sequence[str], permissions: Permissions) -> Missing:
    """Those of the whole recipe, on any machine."""
    return [(module, path) for path, need in needs(composed, trust, permissions)
            for module in need.modules if not available(module)]  # fmt: skip


def missing_now(
    composed: ComposedRecipe, job: Job, folder: Path, trust: Sequence[str], permissions: Permissions
) -> Missing:  # fmt: skip
    """Those without which a run of the job here would stop in the middle; what is done in its folder needs nothing."""
    found = [(module, path) for path, need in needs(composed, trust, permissions) for module in need.modules
             if not available(module) and (not need.on_gpu or _has_gpu())]  # fmt: skip
    if not found:
        return []
    settings = read_values(composed.to_yaml(conceal_keys), "this recipe")
    to_do = tuple(unfinished_steps(job, Run(folder, settings, composed.seed)))
    return [(module, path) for module, path in found if f"{path}.".startswith(to_do)]


def refuse_missing(found: Missing) -> None:
    """Raises MissingPackage where something is missing, with one line that installs all."""
    if found:
        raise MissingPackage(f"{sentence(found)}\nNothing was run.")


def sentence(found: Missing) -> str:
    """What is missing, where the recipe needs it, and the line that installs it."""
    places: dict[str, dict[str, None]] = {}
    for module, path in found:
        places.setdefault(module, {})[path or "the recipe"] = None
    some = {module: next(iter(paths)) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
            for module, paths in places.items()}  # fmt: skip
    named = ", ".join(f"{module} ({paths})" for module, paths in some.items())
    return f"not installed here: {named}. Install: {install_line(places)}"


def _has_gpu() -> bool:
    from nemo_vfm.core.device import device

    return device().type == "cuda"
