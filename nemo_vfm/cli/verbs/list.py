"""List the recipes by group; with a group or a word, also each one's title, hardware, time, result and extras.

Recipes in ./recipes and those of the package are listed. Nothing is parsed or imported.

Examples:
  nemo-vfm list                 # names of all recipes, by group
  nemo-vfm list diffusion/      # a group, with the headers of its recipes
  nemo-vfm list lora wan        # those with both words in name or title
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
    """Add FILTER, any number of times."""
    parser.add_argument("filters", metavar="FILTER", nargs="*", default=[],
                        help="a group such as `diffusion/`, or words that are in a recipe's name or title")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print names, or the headers of the recipes that match every filter. UserError if none does."""
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
        more = "`nemo-vfm list GROUP` or `nemo-vfm list WORD` shows titles, hardware, time, results and extras."
        sys.stdout.writelines(f"{line}\n" for line in textwrap.wrap(more, width))
        return 0
    filters, found = arguments.filters, dict[str, RecipeHeader]()
    for name, file in sorted(recipes.items()):
        head = header(file)
        text = f"{name} {head.title}".lower()
        # A filter that ends in / is a group, any other a part of the name or title.
        if all(name.startswith(word) if word.endswith("/") else word.lower() in text for word in filters):
            found[name] = head
    if not found:
        known = {part for name in recipes for part in (name, *name.split("/"))}
        close = difflib.get_close_matches(filters[0], sorted(known), n=1)
        hint = f"did you mean {close[0]}?" if close else "`nemo-vfm list` shows all names"
        raise UserError(f"no recipe has {' and '.join(map(repr, filters))} in its name or title; {hint}")
    for name, head in found.items():
        fields = [("hardware", head.hardware), ("time", head.time), ("expected", head.expected),
                  ("needs", line_of_extras(head.extras) if head.extras else "")]  # fmt: skip
        texts = filter(None, (head.title, *(f"{what}: {text}" for what, text in fields if text)))
        lines = [line for text in texts for line in _wrap(text, width)]
        sys.stdout.write(f"{printable(name, 200)}\n" + "".join(f"{line}\n" for line in lines))
    return 0


def _wrap(text: str, width: int) -> list[str]:
    # Not at hyphens, which would break commands and paths.
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
