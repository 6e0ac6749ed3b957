"""List the recipes by group; with a group or a word, what each is, needs, takes and gives.

Yours in ./recipes and ours are listed. Nothing is parsed or imported.

Examples:
  nemo-vfm list                 # names of all recipes, by group
  nemo-vfm list diffusion/      # a group: titles, hardware, time, expected result, extras that are needed
  nemo-vfm list lora wan        # those with these words in name or title
"""

import argparse
import difflib
import shutil
import sys
import textwrap
from itertools import groupby

from nemo_vfm.config.roots import RecipeHeader, header
from nemo_vfm.core.optional import line_of_extras
from nemo_vfm.core.sanitize import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which recipes."""
    parser.add_argument("filters", metavar="FILTER", nargs="*", default=[],
                        help="a group such as `diffusion/`, or words that are in a recipe's name or title")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Read the comments on top of every recipe; no recipe is parsed."""
    from nemo_vfm.config.roots import Roots
    from nemo_vfm.core.errors import UserError

    recipes = dict(Roots.standard().all_recipes())
    if not recipes:
        raise UserError("there are no recipes here; a folder `recipes` in the working directory is searched")
    width = max(30, min(shutil.get_terminal_size().columns, 104))
    if not arguments.filters:
        grouped = sorted((printable(name.rpartition("/")[0], 200), name) for name in recipes)
        for group, members in groupby(grouped, key=lambda pair: pair[0]):
            listed = [printable(name, 200) for _, name in members]
            sys.stdout.write(f"{group} ({len(listed)})\n" if group else "")
            sys.stdout.writelines(f"{line}\n" for line in _wrap(", ".join(listed), width))
        more = "`nemo-vfm list GROUP` or `nemo-vfm list WORD` shows what each is, needs, takes and gives."
        sys.stdout.writelines(f"{line}\n" for line in textwrap.wrap(more, width))
        return 0
    words, found = arguments.filters, dict[str, RecipeHeader]()
    for name, file in sorted(recipes.items()):
        one = header(file)
        text = f"{name} {one.title}".lower()
        # All words count, each as a group or as a part of the name or title.
        if all(name.startswith(word) if word.endswith("/") else word.lower() in text for word in words):
            found[name] = one
    if not found:
        known = {part for name in recipes for part in (name, *name.split("/"))}
        close = difflib.get_close_matches(words[0], sorted(known), n=1)
        hint = f"did you mean {close[0]}?" if close else "`nemo-vfm list` shows all names"
        raise UserError(f"no recipe has {' and '.join(map(repr, words))} in its name or title; {hint}")
    for name, one in found.items():
        costs = [("hardware", one.hardware), ("time", one.time), ("expected", one.expected),
                 ("needs", line_of_extras(one.extras) if one.extras else "")]  # fmt: skip
        texts = filter(None, (one.title, *(f"{what}: {text}" for what, text in costs if text)))
        lines = [line for text in texts for line in _wrap(text, width)]
        sys.stdout.write(f"{printable(name, 200)}\n" + "".join(f"{line}\n" for line in lines))
    return 0


def _wrap(text: str, width: int) -> list[str]:
    # A command or a path is not torn at its hyphens.
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
