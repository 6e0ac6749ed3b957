# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments that several verbs share, and the recipe that they name."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.config import Composed

_LOCKS = (
    ": a run folder needs a file system with locks. Run in a folder here, and let checkpoints and shards be copied to "
    "the store as they are finished: copy_to (docs/object-stores.md)"
)


def own_command(*words: str) -> list[str]:
    """`nemo-vfm WORDS` by our own interpreter and module; the words are arguments, never a shell's.

    Unlike `nemo-vfm` itself, `-m` would import from the working directory first, where a stranger's yaml.py may lie.
    """
    apart = [] if sys.path[0] in ("", str(Path.cwd())) else ["-P"]
    return [sys.executable, *apart, "-m", "nemo_vfm", *words]


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, changes, --conf, --trust and --allow-host."""
    parser.add_argument("recipe", metavar="RECIPE", help="a file, or a name that `nemo-vfm list` shows")
    parser.add_argument("overrides", metavar="CHANGE", nargs="*", default=[],
                        help="slot=choice swaps an ingredient, a.b=value sets a value, ~a.b removes it")  # fmt: skip
    add_conf(parser)
    parser.add_argument("--overlay", metavar="NAME", action="append", default=[],
                        help="apply conf/overlay/NAME to every component that it names; `smoke` makes the "
                             "recipe tiny")  # fmt: skip
    add_trust(parser, "the recipe may name")
    add_allow_host(parser)


def add_allow_host(parser: argparse.ArgumentParser) -> None:
    """--allow-host, for every verb that builds a recipe's job."""
    parser.add_argument("--allow-host", metavar="HOST[=VARIABLE]", action="append", default=[],
                        help="a host, s3://BUCKET or ray://HOST:PORT that the recipe may contact; VARIABLE "
                             "holds the API key"
                        )  # fmt: skip


#: What joins GPUs where nobody says: conf/network/NAME.
NETWORK = "dgx_h100"


def add_sample_arguments(parser: argparse.ArgumentParser) -> None:
    """--gpu, --latents and --tokens, for verbs that say how much memory a training needs."""
    parser.add_argument("--gpu", metavar="NAME", default="h100",
                        help="GPU model, such as h100, h200, a100 or rtx_4090 (default h100)")  # fmt: skip
    parser.add_argument(
        "--latents",
        metavar="T,H,W",
        help="latent frames, rows and columns of a sample, if the recipe does not set them",
    )
    parser.add_argument("--tokens", metavar="S", type=int, help="tokens per sequence, if the recipe does not set them")


def add_conf(parser: argparse.ArgumentParser) -> None:
    """--conf, for every verb that looks for ingredients."""
    parser.add_argument("--conf", metavar="DIR", type=Path, action="append", default=[],
                        help="folder of your own ingredients, searched first")  # fmt: skip


def add_trust(parser: argparse.ArgumentParser, words: str) -> None:
    """--trust, for every verb that imports what is named; `words` say what may be done with its classes."""
    parser.add_argument("--trust", metavar="PREFIX", action="append", default=[],
                        help=f"a package whose classes {words}; its code will run")  # fmt: skip


def composed_recipe(arguments: argparse.Namespace, more: Sequence[str] = ()) -> "Composed":
    """The recipe that the arguments name, with their changes and then `more` of them; whose files it takes is said."""
    from nemo_vfm.config import compose

    composed = compose(arguments.recipe, [*arguments.overrides, *more], arguments.conf, arguments.overlay)
    for sentence in composed.shadowing():
        from nemo_vfm.core.log import warn_once

        warn_once(sentence)
    return composed


def run_folder(composed: "Composed") -> Path:
    """The run folder that a recipe asks for; `check` says nothing of it, so it is judged where a run begins.

    Raises:
        RunFolderError: it is an address in an object store.
    """
    from nemo_vfm.core.errors import RunFolderError
    from nemo_vfm.core.place import SCHEMES, local

    path = composed.run_dir
    try:
        return local(path, "run_dir")
    except ValueError as error:
        hint = _LOCKS if str(path).partition(":")[0] in SCHEMES else "; give the path of a folder: run_dir=DIR"
        raise RunFolderError(f"{error}{hint}") from error
