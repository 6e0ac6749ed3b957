"""Composes the recipe that a command line names, and finds its run folder."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.config import ComposedRecipe

_LOCKS = (
    ": a run folder needs a file system with locks. Run in a local folder, and have finished checkpoints and shards "
    "copied to the store: copy_to (docs/how-to/clusters/object-stores.md)"
)


def own_command(*words: str) -> list[str]:
    """`nemo-vfm WORDS` by our own interpreter and module; the words are arguments, never a shell's.

    Unlike `nemo-vfm` itself, `-m` would import from the working directory first, where a stranger's yaml.py may lie.
    """
    apart = [] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]
    return [sys.executable, *apart, "-m", "nemo_vfm", *words]


def composed_recipe(arguments: argparse.Namespace, more: Sequence[str] = ()) -> "ComposedRecipe":
    """The recipe that the arguments name, with their changes and then `more` of them; whose files it takes is said."""
    from nemo_vfm.config import compose, trust_list

    trust = trust_list(getattr(arguments, "trust", ()))
    composed = compose(arguments.recipe, [*arguments.overrides, *more], arguments.conf, arguments.overlay, trust)
    for sentence in composed.shadowing_notes():
        from nemo_vfm.core.log import warn_once

        warn_once(sentence)
    return composed


def run_folder(composed: "ComposedRecipe") -> Path:
    """The run folder that a recipe asks for; `check` says nothing of it, so it is judged where a run begins."""
    from nemo_vfm.core.errors import RunFolderError
    from nemo_vfm.core.storage.uri import SCHEMES, local

    path = composed.run_dir
    try:
        return local(path, "run_dir")
    except ValueError as error:
        hint = _LOCKS if str(path).partition(":")[0] in SCHEMES else "; give the path of a folder: run_dir=DIR"
        raise RunFolderError(f"{error}{hint}") from error
