"""Copies a recipe to a place of the user's: the same text, referring to the same files as before.

Only `write` writes: all files or none, and never over an existing one.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Literal

from nemo_vfm.config import Mark, Roots, SourceText, compose
from nemo_vfm.config.emit import with_places
from nemo_vfm.config.recipe_errors import shown_path
from nemo_vfm.config.roots import recipe_name, shipped_folder
from nemo_vfm.config.tree import Map, Scalar, Seq, find, walk
from nemo_vfm.config.yaml_source import read
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_bytes, write_text

_INCLUDE = "recipe:"
_KINDS: tuple[Literal["conf", "recipes"], ...] = ("conf", "recipes")
_COMMAND = re.compile(r"(nemo-vfm \w+ )(\S+)")


@dataclass(frozen=True, slots=True)
class IngredientUse:
    """An ingredient that a recipe takes."""

    slot: str  #: the folder below `conf/`
    choice: str  #: the file's name in it, without `.yaml`
    file: Path  #: where it lies


def place_of(file: Path, wanted: str | None, roots: Roots) -> Path:
    """Where a copy goes: `recipes/<name>.yaml` unless the user says a file, or a folder: `there` or `to/be/made/`."""
    if wanted is None:
        return Path("recipes") / f"{name_of(file, roots)}.yaml"
    dest = Path(wanted)
    if wanted.endswith("/") or dest.is_dir():
        return dest / file.name
    return dest if dest.suffix in (".yaml", ".yml") else dest.with_name(f"{dest.name}.yaml")


def name_of(file: Path, roots: Roots) -> str:
    """The name that `list` shows, or the file's own where it lies in none of the recipe folders."""
    for root in roots.recipes:
        if file.resolve().is_relative_to(root.resolve()):
            return recipe_name(root.resolve(), file.resolve())
    return file.stem


def copied_text(file: Path, dest: Path, roots: Roots) -> str:
    """The recipe as it stands, with its own path in the comments and includes that would lead elsewhere adapted."""
    own = read(file)  # says what is wrong with a file that is none
    lines = _own_command(read_bytes(file).decode(), file, dest, roots).splitlines(keepends=True)
    for node in _includes(own):
        name = str(node.value).removeprefix(_INCLUDE)
        wanted = roots.recipe(name, node.mark, file.parent)
        try:
            is_same = roots.recipe(name, Mark(SourceText(str(dest), ())), dest.parent).resolve() == wanted.resolve()
        except UserError:
            is_same = False
        if not is_same:
            line = node.mark.line - 1
            lines[line] = lines[line].replace(f"{_INCLUDE}{name}", f"{_INCLUDE}{relpath(wanted, dest.parent)}")
    return "".join(lines)


def flat_text(file: Path, dest: Path, roots: Roots, conf_dirs: Sequence[Path]) -> str:
    """The composed recipe as one file: references stay, every value has its origin behind it."""
    composed = compose(file, (), conf_dirs)
    # Defaults that no file gives would tie the copy to the name of the original's run folder.
    given = [key for key, node in composed.root.items.items() if not node.mark.source.is_file]
    body = with_places(composed.root.without(*given))
    for kind in _KINDS:  # an origin that every machine knows, rather than where this one keeps our files
        body = body.replace(f"  # {shown_path(str(shipped_folder(kind)))}/", f"  # {kind}/")
    lines = read_bytes(file).decode().splitlines(keepends=True)
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return _own_command("".join(lines[:length]), file, dest, roots) + body


def ingredients(file: Path, roots: Roots) -> list[IngredientUse]:
    """Every ingredient that a recipe and the recipes in it take, each once."""
    return list({use.file.resolve(): use for use in _uses(file, roots, ())}.values())


def recipes_in(file: Path, roots: Roots) -> list[str]:
    """The names of the recipes that a recipe includes by itself."""
    nodes = _includes(read(file))
    files = (roots.recipe(str(n.value).removeprefix(_INCLUDE), n.mark, file.parent) for n in nodes)
    return list(dict.fromkeys(name_of(inner, roots) for inner in files))


def write(texts: Mapping[Path, str]) -> None:
    """Write every file, or none."""
    if hidden := [path for path in texts if not str(path).isprintable()]:
        raise UserError(f"{str(hidden[0])!a} contains invisible characters; choose another place")
    there = [shown_path(str(path)) for path in texts if path.exists() or path.is_symlink()]
    if there:
        verb = "is" if len(there) == 1 else "are"
        raise UserError(f"{', '.join(there)} {verb} there already and is never overwritten: move it, or choose "
                        f"another place")  # fmt: skip
    written: list[Path] = []
    try:
        for path, text in texts.items():
            write_text(path, text)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UserError(f"cannot write {error.filename}: {error.strerror}; nothing was copied") from error


def _own_command(text: str, file: Path, dest: Path, roots: Roots) -> str:
    """Where the comments on top show the recipe's command, they show the copy's."""
    own = {str(file), shown_path(str(file)), name_of(file, roots), f"recipes/{name_of(file, roots)}.yaml"}
    new = shlex.quote(shown_path(str(dest)))
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if not line.startswith("#"):
            break
        lines[i] = _COMMAND.sub(lambda m: f"{m[1]}{new}" if m[2] in own else m[0], line)
    return "".join(lines)


def _includes(own: Map) -> list[Scalar]:
    """Every `recipe:...` of a file, where the language gives it a meaning: among the defaults and under the steps."""
    places = [node for key in ("defaults", "steps") if (node := own.items.get(key)) is not None]
    scalars = (node for place in places for _, node in walk(place) if isinstance(node, Scalar))
    return [node for node in scalars if isinstance(node.value, str) and node.value.startswith(_INCLUDE)]


def _uses(file: Path, roots: Roots, chain: tuple[Path, ...]) -> Iterator[IngredientUse]:
    if file.resolve() in chain:  # `check` says what is wrong with it
        return
    own, chain = read(file), (*chain, file.resolve())
    for node in _includes(own):
        yield from _uses(roots.recipe(str(node.value).removeprefix(_INCLUDE), node.mark, file.parent), roots, chain)
    defaults = find(own, "defaults")
    pairs = [item for item in defaults.items if isinstance(item, Map)] if isinstance(defaults, Seq) else []
    for slot, choice in ((slot, choice) for pair in pairs for slot, choice in pair.items.items()):
        if isinstance(choice, Scalar) and isinstance(choice.value, str) and not choice.value.startswith(_INCLUDE):
            ingredient = roots.require_ingredient(slot, choice.value, choice.mark)
            yield IngredientUse(slot.rpartition(".")[2], choice.value, ingredient)
            yield from _uses(ingredient, roots, chain)
