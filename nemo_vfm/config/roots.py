"""Finds the file of a recipe or an ingredient by its name, the user's own before ours, and reads a recipe's header."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from typing import Literal

from nemo_vfm.config.recipe_errors import Mark, did_you_mean, fail, nearest, some_of
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import is_file, open_regular
from nemo_vfm.core.types.job import RECIPE

_FOLDER = re.compile(r"[A-Za-z0-9_][\w-]{0,99}", re.ASCII)
_CHOICE = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*", re.ASCII)
_TARGET = re.compile(r"^_target_:\s*['\"]?([\w.]+)", re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]
BUILT_IN = "built in"
_MAX_BYTES = 64 << 10
_FIELD = re.compile(r"\b(Hardware|Time|Expected|Extras):\s*")
#: A sentence ends where another begins: `0.5 s`, `clips.yaml` and `aesthetic.*` hold none.
_SENTENCE = re.compile(r".*?[.?!](?=\s+[A-Z0-9`(]|$)")


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that are searched, best first."""

    conf: tuple[Path, ...]  #: folders of ingredients, `<slot>/<choice>.yaml`
    recipes: tuple[Path, ...]  #: folders of recipes

    @classmethod
    def standard(cls, conf_dirs: Sequence[Path] = ()) -> "Roots":
        """`--conf` folders, then the working directory's own, then the checkout's or the package's copy."""
        conf = (*map(Path, conf_dirs), Path("conf"), shipped_folder("conf"))
        return cls(_distinct(conf), _distinct((Path("recipes"), shipped_folder("recipes"))))

    def choices(self, slot: str) -> list[str]:
        """The names of the ingredients for a slot; its folder is the last part of a dotted slot."""
        folder = slot.rpartition(".")[2]
        if not _FOLDER.fullmatch(folder):  # "/" would search the whole machine
            return []
        files = ((base, file) for root in self.conf if (base := root / folder).is_dir() for file in _yaml_files(base))
        return sorted({str(file.relative_to(base).with_suffix("")) for base, file in files})

    def targets(self, slot: str) -> dict[str, str]:
        """The names of the ingredients for a slot, each with the class that it is; empty where its file names none."""
        files = {choice: self.ingredient(slot, choice) for choice in self.choices(slot)}
        found = {choice: file and _TARGET.search(file.read_text("utf-8", "replace")) for choice, file in files.items()}
        return {choice: match[1] if match else "" for choice, match in found.items()}

    def ingredient(self, slot: str, choice: str) -> Path | None:
        """The file of an ingredient, or None."""
        folder = slot.rpartition(".")[2]
        if not _CHOICE.fullmatch(choice) or not _FOLDER.fullmatch(folder):
            return None
        files = (root / folder / f"{choice}.yaml" for root in self.conf)
        return next((file for file in files if is_file(file)), None)

    def whose(self, file: Path) -> str:
        """Whose an ingredient's file is, in words, and whether it stands in the place of one of ours."""
        if file.resolve().is_relative_to(shipped_folder("conf").resolve()):
            return BUILT_IN
        owner = "the working directory's" if Path("conf") in file.parents else "from a folder of --conf"
        return f"{owner}, instead of the built-in file" if self.find_shadowed(file) else owner

    def find_shadowed(self, file: Path) -> Path | None:
        """The file of ours that would be read if this one were not there, unless it is a copy of it."""
        places = [(root, shipped_folder("conf")) for root in self.conf]
        places += [(root, shipped_folder("recipes")) for root in (*self.recipes, Path())]
        ours = (folder / file.relative_to(root) for root, folder in places if file.is_relative_to(root))
        return next((one for one in ours if one.is_file() and not cmp(one, file, shallow=False)), None)

    def require_ingredient(self, slot: str, choice: str, mark: Mark) -> Path:
        """The file of an ingredient, or an error that lists what there is."""
        if found := self.ingredient(slot, choice):
            return found
        raise fail(no_ingredient(slot, choice, self.choices(slot)), mark, slot)

    def overlay(self, name: str, mark: Mark) -> list[Path]:
        """The files of an overlay: `conf/overlay/<name>.yaml` and all below `conf/overlay/<name>/`, of every root.

        A user's own rules come after ours and so win; a file of the same name replaces the built-in file.
        """
        found: dict[Path, Path] = {}
        is_name = _CHOICE.fullmatch(name) and len(name) < 200
        for base in reversed([root / "overlay" for root in self.conf]) if is_name else ():
            files = [file for file in (base / f"{name}.yaml",) if file.is_file()] + _yaml_files(base / name)
            for file in files:
                found.pop(file.relative_to(base), None)
                found[file.relative_to(base)] = file
        if found:
            return list(found.values())
        known = sorted({choice.split("/")[0] for choice in self.choices("overlay")})
        there = f"conf/overlay holds {some_of(known)}" if known else "there is no folder conf/overlay"
        raise fail(f"there is no overlay {name}: {there}{did_you_mean(name, known)}", mark)

    def is_foreign(self, file: Path) -> bool:
        """Whether an ingredient is a link that leads out of the folders of ingredients."""
        return not any(file.resolve().is_relative_to(root.resolve()) for root in self.conf)

    def recipe(self, name: str, mark: Mark, beside: Path | None = None, but: Path | None = None) -> Path:
        """The file of a recipe: relative to the working directory, then to `beside`, then to the recipe folders.

        The file `but` may itself be called so and is taken only where there is no other.
        """
        if "://" in name or "\0" in name or len(name) > 1000:
            raise fail(f"{name[:80]!r} is not a path; recipes are read from files only", mark)
        if name.endswith(".py"):
            raise fail(f"{name} is Python; a recipe is YAML and names Python classes, see docs/adding.md", mark)
        bases: tuple[Path, ...] = (Path(), *((beside,) if beside else ()), *self.recipes)
        wanted = (Path(name), Path(f"{name}.yaml"))
        found = [file for file in (base / want for base in bases for want in wanted) if is_file(file)]
        if found:
            others = [file for file in found if but is None or file.resolve() != but.resolve()]
            return (others or found)[0]
        if is_file(inside := Path(name) / RECIPE):
            raise fail(f"{name} is a run folder; its recipe is {inside}", mark)
        known = [recipe_name(root, file) for root in self.recipes for file in _yaml_files(root)]
        # Recipes whose last part is this name, else the nearest name, in full or by its last part.
        wanted_name, shorts = name.removesuffix(".yaml").removeprefix("recipes/"), dict[str, list[str]]()
        for one in known:
            shorts.setdefault(one.rpartition("/")[2], []).append(one)
        short = wanted_name.rpartition("/")[2]
        alike = shorts.get(short) or nearest(wanted_name, known)
        alike = alike or [one for near in nearest(short, shorts) for one in shorts[near]]
        hint = f"; did you mean {' or '.join(alike[:3])}?" if alike else ""
        raise fail(f"there is no recipe {name}{hint or '; `nemo-vfm list` shows all recipes'}", mark)

    def all_recipes(self) -> Iterator[tuple[str, Path]]:
        """Every recipe with the name that `run` takes."""
        seen: set[str] = set()
        for root in self.recipes:
            for file in _yaml_files(root):
                if (name := recipe_name(root, file)) not in seen:
                    seen.add(name)
                    yield name, file


def shipped_folder(kind: Literal["conf", "recipes"]) -> Path:
    """Our own ingredients or recipes: the checkout's where there is one, else the copy inside the package."""
    checkout = _PACKAGE.parent
    # The third name tells a checkout from a site-packages in which somebody else left a `conf` and a `recipes`.
    if all((checkout / name).exists() for name in ("conf", "recipes", "pyproject.toml")):
        return checkout / kind
    return _PACKAGE / f"_{kind}"


def no_ingredient(slot: str, choice: str, known: Sequence[str]) -> str:
    """Says that an ingredient does not exist, and which do."""
    folder = f"conf/{slot.rpartition('.')[2]}"
    there = f"{folder} holds {some_of(known)}" if known else f"there is no folder {folder}"
    return f"there is no {folder}/{choice}.yaml: {there}{did_you_mean(choice, known)}"


def recipe_name(root: Path, file: Path) -> str:
    """`curation/curate` for `recipes/curation/curate.yaml`."""
    return str(file.relative_to(root).with_suffix(""))


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(filter(is_file, folder.rglob("*.yaml"))) if folder.is_dir() else []


def _distinct(folders: Sequence[Path]) -> tuple[Path, ...]:
    found: dict[Path, Path] = {}
    for folder in folders:
        found.setdefault(folder.resolve(), folder)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class RecipeHeader:
    """What the comment that begins a recipe tells, a sentence each; empty where it does not say."""

    title: str  #: what the recipe does
    hardware: str  #: what it needs
    time: str  #: how long it takes there
    expected: str  #: what comes of it
    extras: tuple[str, ...] = ()  #: of ours that its components need, such as `text`


def header(file: Path) -> RecipeHeader:
    """The comment block that begins a recipe; its licence and its commands are passed over."""
    try:
        with open_regular(file) as data:  # a page of comments is far shorter
            text = data.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        return RecipeHeader(f"It cannot be read: {error.strerror}.", "", "", "")
    length = next((number for number, line in enumerate(text) if line and not line.startswith("#")), len(text))
    prose, command = [], False  # commands are left out: those may go on behind a backslash
    for line in (line.lstrip("#").strip() for line in text[:length] if "SPDX-" not in line):
        command = line.startswith(("nemo-vfm ", "... ")) or command
        prose += [] if command else [line]
        command = command and line.endswith("\\")
    paragraph = printable(" ".join(" ".join(prose).split()), _MAX_BYTES)
    title, *rest = _FIELD.split(paragraph)
    fields = {
        name: _first_sentence(sentence).removesuffix(".") for name, sentence in zip(rest[::2], rest[1::2], strict=True)
    }
    extras = tuple(re.findall(r"\w+", fields.get("Extras", "")))
    return RecipeHeader(_first_sentence(title), fields.get("Hardware", ""), fields.get("Time", ""),
                  fields.get("Expected", ""), extras)  # fmt: skip


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(text.strip())
    return found[0] if found else text.strip()
