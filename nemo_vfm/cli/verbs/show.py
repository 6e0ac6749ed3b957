"""Show a composed recipe: every value with the file and line it comes from; or how two recipes differ.

The output is YAML and can be run; values from the environment stay names. With --diff --defaults, a written value that
equals the default is no difference. Differences do not change the exit status.

Examples:
  nemo-vfm show quickstart                                        # the values from the recipe and its ingredients
  nemo-vfm show quickstart --defaults                             # every value of the run, each with its line of code
  nemo-vfm show --diff runs/a runs/b                              # two run folders or recipes; changes apply to both
  nemo-vfm show --diff diffusion/train_small optimizer.lr=1e-4    # the effect of changes on one recipe
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments
from nemo_vfm.cli.without_gc import without_collection
from nemo_vfm.config.emit import text_of, with_places
from nemo_vfm.config.tree import Map, Node, Scalar, Seq, join
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import RECIPE
from nemo_vfm.runtime.command import composed_recipe
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from nemo_vfm.config import ComposedRecipe

_ALIGNED = 48  # a longer value is not aligned with the others
_IGNORED = ("run_dir",)  # where a run lies is no part of what it is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, or two."""
    add_recipe_arguments(parser)
    parser.add_argument("--diff", action="store_true",
                        help="print only the differences: A B [CHANGE ...] or A CHANGE ...; run folders work, "
                             "too")  # fmt: skip
    parser.add_argument("--defaults", action="store_true",
                        help="also print constructor defaults that the recipe does not set")  # fmt: skip


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """Print it; values of the environment stay names."""
    if arguments.diff:
        _write_differences(arguments)
        return 0  # also where there are some, as `git diff` does
    if arguments.defaults:
        sys.stdout.write(with_places(_tree(composed_recipe(arguments), arguments), _width()))
        return 0
    sys.stdout.write(composed_recipe(arguments).show(_width()))
    return 0


def _width() -> int | None:
    """Of the terminal, in columns; a file or a pipe has no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _tree(composed: "ComposedRecipe", arguments: argparse.Namespace, *, keep: frozenset[str] = frozenset()) -> Map:
    from nemo_vfm.config.interpolate import resolve

    tree = resolve(composed.root, keep_env=True, keep=keep)[0]
    if not arguments.defaults:
        return tree
    from nemo_vfm.cli.catalogue.defaults import Filler
    from nemo_vfm.config import trust_list
    from nemo_vfm.config.compose import RESERVED

    filler = Filler(trust_list(arguments.trust))
    whole = filler.recipe(tree, RESERVED)
    for reason in filler.left_out.values():
        sys.stderr.write(f"defaults not shown: {reason}\n")
    return whole


def _write_differences(arguments: argparse.Namespace) -> None:
    """Of A and B with the changes made to both, or of A without and with them, each key and what the sides say there.

    A list of plain values alone counts as one value.
    """
    words = list(arguments.overrides)
    second = next((word for word in words if "=" not in word and not word.startswith("~")), None)
    if second is not None:
        words.remove(second)
    elif not words:
        raise UserError("--diff takes two recipes or run folders, or one and changes to it")
    trees = []
    for name, changes in ((arguments.recipe, [] if second is None else words), (second or arguments.recipe, words)):
        file = name
        if Path(name).is_dir():
            file = str(Path(name) / RECIPE)
            if not Path(file).is_file():
                raise UserError(f"{name} is a folder without recipe.yaml; give a recipe or a run folder")
        composed = composed_recipe(argparse.Namespace(**{**vars(arguments), "recipe": file, "overrides": changes}))
        # A path below the run folder is the same path in both.
        trees.append(_tree(composed, arguments, keep=frozenset({"run_dir"})))
    left, right = (dict(_leaves(tree)) for tree in trees)
    keys = list(left)  # in their order, a new one behind what stands before it in the new recipe
    for before, key in zip(["", *right], right, strict=False):
        if key not in left:
            keys.insert(keys.index(before) + 1 if before in keys else 0, key)
    sides = {key: (left.get(key), right.get(key)) for key in keys if key not in _IGNORED}
    differing = {key: pair for key, pair in sides.items() if _text(pair[0]) != _text(pair[1])}
    paper = Terminal()
    if not differing:
        paper.line("no difference")
    texts = [_text(node) for pair in differing.values() for node in pair]
    width = max((len(text) for text in texts if len(text) <= _ALIGNED), default=0)
    for key, pair in differing.items():
        paper.line(key, "bold")
        for mark, style, node in zip("-+", ("red", "green"), pair, strict=True):
            if node is not None:
                via = f" {node.via}" if isinstance(node, Scalar) and node.via not in ("", node.value) else ""
                paper.line(f"  {mark} {_text(node):<{width}}  # {node.mark.place()}{via}", style)


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    below: Mapping[str, Node] = {}
    if isinstance(node, Map):
        below = node.items
    elif isinstance(node, Seq) and not all(isinstance(item, Scalar) for item in node.items):
        below = {str(index): item for index, item in enumerate(node.items)}
    if not below:
        yield path, node
    for key, value in below.items():
        yield from _leaves(value, join(path, key))


def _text(node: Node | None) -> str:
    if node is None:
        return ""
    if isinstance(node, Seq):
        return f"[{', '.join(map(_text, node.items))}]"
    return text_of(node.value) if isinstance(node, Scalar) else "{}"
