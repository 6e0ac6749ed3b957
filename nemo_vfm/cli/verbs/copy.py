"""Copy a recipe to make it your own, or start a project: `nemo-vfm copy project DIR`. Nothing is ever overwritten.

The copy takes precedence over ours, its comments show its own command, and it composes to exactly the same. A project
has a stage and a sampler of yours, their tests, an ingredient and a recipe (docs/how-to/recipes.md).

Examples:
  nemo-vfm copy quickstart                               # recipes/quickstart.yaml
  nemo-vfm copy diffusion/dit_xl recipes/mine.yaml       # under another name
  nemo-vfm copy diffusion/sample --with-ingredients      # also the conf/ files that it uses, where they replace ours
  nemo-vfm copy diffusion/sample mine.yaml --flat        # a single file, with the origin of each value as a comment
  nemo-vfm copy project my_project                       # a project
"""

import argparse
import sys
from pathlib import Path

from nemo_vfm.cli.arguments import add_conf

PROJECT = "project"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to copy, where to, and how much of it."""
    parser.add_argument("recipe", metavar="RECIPE",
                        help="a file, a name that `nemo-vfm list` shows, or the word `project`")  # fmt: skip
    parser.add_argument("dest", metavar="DEST", nargs="?",
                        help="file or folder to write (default: recipes/<name>.yaml); for a project, its "
                             "folder")  # fmt: skip
    parser.add_argument(
        "--with-ingredients", action="store_true", help="also copy the conf files that it uses to ./conf"
    )
    parser.add_argument("--flat", action="store_true", help="write a single file with every ingredient inlined")
    add_conf(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the copy and say what is where."""
    from nemo_vfm.core.errors import UserError

    if arguments.flat and arguments.with_ingredients:
        raise UserError("--flat puts the ingredients into the one file; leave out --with-ingredients, or --flat")
    if arguments.recipe == PROJECT:
        return _project(arguments)
    from nemo_vfm.cli.copy_recipe import copied_text, flat_text, ingredients, place_of, recipes_in, write
    from nemo_vfm.config import Mark, Roots, SourceText
    from nemo_vfm.core.storage.files import read_bytes

    roots = Roots.standard(arguments.conf)
    file = roots.recipe(arguments.recipe, Mark(SourceText(arguments.recipe, ())))
    dest = place_of(file, arguments.dest, roots)
    text = flat_text(file, dest, roots, arguments.conf) if arguments.flat else copied_text(file, dest, roots)
    texts, notes = {dest: text}, {dest: f"from {file}"}
    for use in ingredients(file, roots) if arguments.with_ingredients else ():
        target = Path("conf") / use.slot / f"{use.choice}.yaml"
        if use.file.resolve() != target.resolve():
            texts[target], notes[target] = read_bytes(use.file).decode(), "replaces the built-in file from now on"
    write(texts)
    width = max(len(str(path)) for path in notes)
    sys.stdout.write("".join(f"{path!s:<{width}}  {note}\n" for path, note in notes.items()))
    inner = [] if arguments.flat else recipes_in(file, Roots.standard())
    if inner:
        sys.stdout.write(f"It includes {', '.join(inner)}; copy one of these in the same way, and yours is used.\n")
    sys.stdout.write(f"Now: nemo-vfm check {dest}\n")
    return 0


def _project(arguments: argparse.Namespace) -> int:
    from nemo_vfm.cli.copy_recipe import write
    from nemo_vfm.cli.project import files_of, package_name
    from nemo_vfm.core.errors import UserError

    if arguments.dest is None:
        raise UserError("a project needs a folder: nemo-vfm copy project my_project (which is also the package's name)")
    if arguments.flat or arguments.with_ingredients:
        raise UserError("--flat and --with-ingredients are for recipes; leave them out for a project")
    folder = Path(arguments.dest)
    texts = files_of(folder, package_name(folder))
    write(texts)
    sys.stdout.write("".join(f"{path}\n" for path in texts))
    sys.stdout.write(f"\nNow: cd {folder}, and README.md has the three commands; the first needs nothing installed.\n")
    return 0
