"""Defines the arguments that several verbs share."""

import argparse
from pathlib import Path


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, changes, --conf, --trust, --allow-host and --allow-write."""
    parser.add_argument("recipe", metavar="RECIPE", help="a file, or a name that `nemo-vfm list` shows")
    parser.add_argument("overrides", metavar="CHANGE", nargs="*", default=[],
                        help="slot=choice swaps an ingredient, a.b=value sets a value, ~a.b removes it")  # fmt: skip
    add_conf(parser)
    parser.add_argument("--overlay", metavar="NAME", action="append", default=[],
                        help="apply conf/overlay/NAME to every component that it names; `smoke` makes the "
                             "recipe tiny")  # fmt: skip
    add_trust(parser, "the recipe may name")
    add_allow_host(parser)
    # Kept among the words of --allow-host, so that whatever passes these on passes it on, too.
    parser.add_argument("--allow-write", metavar="DIR", dest="allow_host", action="append", type=_folder,
                        help="a folder outside the working directory and the run folder in which the recipe may "
                             "write")  # fmt: skip


_CONTACTED = "a host, s3://BUCKET or ray://HOST:PORT that the recipe may contact; VARIABLE holds the API key"


def add_allow_host(parser: argparse.ArgumentParser, words: str = _CONTACTED) -> None:
    """--allow-host, for every verb that builds a recipe's job, or contacts a host itself; `words` are its help."""
    parser.add_argument("--allow-host", metavar="HOST[=VARIABLE]", action="append", default=[], help=words)


def _folder(text: str) -> str:
    from nemo_vfm.core.network.permission import folder_word  # only where the option is given

    return folder_word(text)


#: The default GPU, and the default network between them: conf/network/NAME.
GPU, NETWORK = "h100", "dgx_h100"


def add_sample_arguments(parser: argparse.ArgumentParser) -> None:
    """--gpu, --latents and --tokens, for verbs that say how much memory a training needs."""
    parser.add_argument("--gpu", metavar="NAME", default=GPU,
                        help="GPU model, such as h100, h200, a100 or rtx_4090 (default h100)")  # fmt: skip
    parser.add_argument("--latents", metavar="T,H,W",
                        help="latent frames, rows and columns of a sample, if the recipe does not set them"
                        )  # fmt: skip
    parser.add_argument("--tokens", metavar="S", type=int, help="tokens per sequence, if the recipe does not set them")


def add_conf(parser: argparse.ArgumentParser) -> None:
    """--conf, for every verb that looks for ingredients."""
    parser.add_argument("--conf", metavar="DIR", type=Path, action="append", default=[],
                        help="folder of your own ingredients, searched first")  # fmt: skip


def add_trust(parser: argparse.ArgumentParser, words: str) -> None:
    """--trust, for every verb that imports what is named; `words` say what may be done with its classes."""
    parser.add_argument("--trust", metavar="PREFIX", action="append", default=[],
                        help=f"a package whose classes {words}; its code will run")  # fmt: skip
