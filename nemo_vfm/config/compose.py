"""Composes a recipe with the changes from the command line into one tree; every value keeps its place.

`defaults: [{slot: choice}]` puts `conf/<slot>/<choice>.yaml` under the slot, in order, and the file itself on top.
`recipe:path` as a choice, or as a value under `steps`, inserts a whole composed recipe there; among the defaults
without a slot it is the recipe that this one builds on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemo_vfm.config.emit import flow, to_yaml, with_places
from nemo_vfm.config.interpolate import has_interpolation, reroot, resolve, resolve_at
from nemo_vfm.config.locate import DEFAULT_TRUST
from nemo_vfm.config.overrides import Override, apply, apply_overlays, is_address, makers, parse_override
from nemo_vfm.config.recipe_errors import Mark, RecipeError, SourceText, fail, printable, shown_path
from nemo_vfm.config.recipe_paths import run_dir_of
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import (
    MISSING,
    TARGET,
    Map,
    Node,
    Plain,
    Scalar,
    Seq,
    drop,
    find,
    join,
    map_scalars,
    mark_at,
    merge,
    nest,
    put,
    walk,
)
from nemo_vfm.config.yaml_source import MAX_DEPTH, read, read_foreign
from nemo_vfm.core.recipe_keys import moved_keys
from nemo_vfm.core.types.job import MANIFEST, RECIPE

RESERVED = ("run_dir", "seed")
MAX_SEED = 1 << 63  # a 64-bit integer holds no larger one
MAX_INCLUDES = 20
# Of a whole recipe: two includes a file would else double with each of them. Our largest takes 30 files.
MAX_FILES, MAX_NODES = 300, 50_000
_RECIPE = "recipe:"
#: The word `data=mock`, the overlay that it stands for, and what that sets on each training.
MOCK, MOCKED = "mock", "mock_data"
_MOCK = ("data", MOCK)


@dataclass(frozen=True, slots=True)
class ComposedRecipe:
    """A composed recipe."""

    root: Map  #: the tree, interpolations still in place, with the reserved keys `run_dir` and `seed`
    path: Path  #: the recipe's file
    roots: Roots  #: where ingredients were looked for
    #: of values for the user to give, how an overlay says that one makes some; by address
    makers: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    #: what `config.check` and the like have found of it, by what they depend on
    examined: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def mark_at(self, address: Sequence[str]) -> Mark:
        """Where the value at an address is written, or what is nearest to it."""
        return mark_at(self.root, self.root.mark, address)

    @property
    def run_dir(self) -> Path:
        """The run folder that the recipe asks for; only the command line may lead out of the working directory."""
        return run_dir_of(self._reserved_key("run_dir", str, "a path"), self.path)

    @property
    def seed(self) -> int:
        """The root of all randomness."""
        value = self._reserved_key("seed", int, "a whole number").value
        assert isinstance(value, int)
        if not 0 <= value < MAX_SEED:
            raise fail(f"seed must be at least 0 and below 2^63, got {value}", self.root.items["seed"].mark, "seed")
        return value

    def to_yaml(self, clean: Callable[[str], str] = str) -> str:
        """The composed recipe as text, for the run folder; every key and text goes through `clean`.

        `${env:...}` stays as it is, so that no secret is written, and `${run_dir}`, so that a folder can be moved.
        """
        tree, problems = resolve(self.root, keep_env=True, keep=frozenset({"run_dir"}))
        if problems:
            raise RecipeError(problems)
        cleaned = map_scalars(
            tree, lambda one: replace(one, value=clean(one.value)) if isinstance(one.value, str) else one, clean
        )
        assert isinstance(cleaned, Map)
        return to_yaml(cleaned)

    def typed_words(self) -> list[str]:
        """What the user typed, as changes of what `to_yaml` writes: read from there, all of it is the recipe's."""
        tree, _ = resolve(self.root, keep_env=True, keep=frozenset({"run_dir"}))
        return [f"{path}={flow(node)}" for path, node in _user_parts(tree, "")]

    def show(self, width: int | None = None) -> str:
        """The composed recipe with the place of every value; `width` is the terminal's, in columns."""
        return with_places(resolve(self.root, keep_env=True)[0], width)

    def shadowing_notes(self) -> list[str]:
        """A sentence for each file of the user's that stands in the place of one of ours."""
        sources = {node.mark.source for _, node in walk(self.root) if node.mark.source.is_file}
        files = sorted({self.path, *(Path(source.name) for source in sources if source.name)})
        return [
            f"{shown_path(str(file))} replaces the built-in file" for file in files if self.roots.find_shadowed(file)
        ]

    def _reserved_key(self, key: str, kind: type, words: str) -> Scalar:
        node = resolve_at(self.root, key)
        if isinstance(node, Scalar) and node.value == MISSING:  # no folder of this name
            raise fail(f"you must set this: {key}=VALUE ({words})", node.mark, key)
        if not isinstance(node, Scalar) or type(node.value) is not kind or not str(node.value) or node.broken:
            raise fail(f"{key} must be {words}", node.mark, key)
        return node


def _user_parts(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """The largest parts of a resolved tree that are the user's as a whole; a list can only be set as one."""
    values = [below.is_typed for _, below in walk(node) if isinstance(below, Scalar)]
    if values and all(values):
        yield path, node
    elif isinstance(node, Map):
        for key, below in node.items.items():
            if is_address(key) and "." not in key:
                yield from _user_parts(below, join(path, key))


def compose(
    path: Path | str, overrides: Sequence[str] = (), conf_dirs: Sequence[Path] = (), overlays: Sequence[str] = (),
    trust: Sequence[str] = DEFAULT_TRUST,
) -> ComposedRecipe:  # fmt: skip
    """Read a recipe and everything it names, and make the changes.

    Args:
        path: a file, or the name of a recipe such as `quickstart`.
        overrides: `slot=choice`, `a.b=value` or `~a.b`. Choices take effect first, the rest in order.
        conf_dirs: more folders of ingredients, searched first.
        overlays: names of overlays (see `overlay`); single values of the command line win over them.
        trust: whose classes are asked whether `key=word` is a choice or a text, see `locate`.

    Raises:
        RecipeError: a file is missing or is not a recipe, or a change cannot be made.
    """
    roots = Roots.standard(conf_dirs)
    file = roots.recipe(str(path), Mark(SourceText(str(path), ())))
    changes = [parse_override(word) for word in overrides]
    asked = [one for one in changes if (one.path, one.text) == _MOCK and not roots.ingredient(*_MOCK)]
    if asked:  # no ingredient: what trains keeps its data, and an overlay says that its samples are made up
        changes, overlays = [one for one in changes if one not in asked], [*overlays, MOCK]
    root = _Composer(roots, {}).recipe(file)
    named = root  # with the classes that the user names
    for change in changes:
        named = apply(named, change) if change.path.endswith(f".{TARGET}") else named
    swaps = {c.path: c for c in changes if _is_swap(c, named, roots, trust)}
    if swaps:  # other ingredients: where a default names the slot there, else in place of what is there
        composer = _Composer(roots, swaps)
        root = composer.recipe(file)
        for slot, change in swaps.items():
            if slot not in composer.used:
                part = composer.choice(slot, change.text, change.mark, file, slot, (file,))
                root = put(root, slot, part, change.mark)
    root, rules = apply_overlays(root, overlays, roots)
    if asked and not any(is_mocked(node) for _, node in walk(root)):
        raise fail("data=mock makes up what a training reads, but no step of this recipe is a training of ours "
                   "(nemo_vfm.train.job.Train); give its own data", asked[0].mark, asked[0].path)  # fmt: skip
    for change in changes:
        if swaps.get(change.path) is not change:
            root = apply(root, change)
    root = with_reserved(root, "-".join((file.stem, *overlays)))
    return ComposedRecipe(root, file, roots, makers(root, rules))


def is_mocked(node: Node) -> bool:
    """Whether a node is a training whose samples are made up."""
    return isinstance(node, Map) and isinstance(node.items.get(MOCKED), Map)


def mocked_data(root: Node) -> tuple[str, ...]:
    """How the addresses begin of data whose samples are made up: nothing is read there."""
    return tuple(f"{join(path, 'data')}." for path, node in walk(root) if is_mocked(node))


def _is_swap(change: Override, root: Map, roots: Roots, trust: Sequence[str]) -> bool:
    """Whether a change names an ingredient rather than a value. Many words are both, such as bf16 of a `precision`."""
    if change.value is None or not isinstance(change.value, Scalar):
        return False
    if change.text.startswith(_RECIPE):
        return True
    present = find(root, change.path)
    if isinstance(present, Scalar) and present.value not in (None, "???") and "." in change.path:
        return False
    if roots.ingredient(change.path, change.text):
        from nemo_vfm.config.slot_fit import takes_values_only  # classes are imported only where there is a doubt

        return isinstance(present, Map) or not takes_values_only(root, change.path, trust)
    is_word = change.text != MISSING and not has_interpolation(change.value.value)
    if isinstance(present, Map) and isinstance(change.value.value, str) and is_word:
        from nemo_vfm.config.slot_fit import word_refusal

        if refusal := word_refusal(root, change.path, change.value.value, roots, trust):
            raise fail(refusal, change.mark, change.path)
    return False


def with_reserved(root: Map, name: str) -> Map:
    """The tree with `run_dir` and `seed`; under an overlay a folder of its own, beside the real run's."""
    mark = Mark(SourceText("default of every recipe", (), is_file=False))
    values: dict[str, Plain] = {"run_dir": f"runs/{name}", "seed": 0}
    for key in RESERVED:
        if key not in root.items:
            root = root.with_item(key, Scalar(values[key], mark), mark)
    return root


@dataclass(slots=True)
class _Composer:
    """Lays files over one another; `place` is where a file's root stands in the whole recipe."""

    roots: Roots
    swaps: dict[str, Override]
    used: set[str] = field(default_factory=set)
    _files: int = 0
    _nodes: int = 0

    def recipe(self, file: Path, place: str = "", chain: tuple[Path, ...] = (), mark: Mark | None = None) -> Map:
        """A whole composed recipe; `mark` is where another file names it."""
        root = self._layers(file, place, chain, mark, is_foreign=True, is_recipe=True)
        is_run = file.name == RECIPE and (file.parent / MANIFEST).is_file()  # maybe one of an earlier version
        for path, node in walk(root) if is_run else ():
            if not isinstance(node, Map):
                continue
            for old, new in moved_keys({key: getattr(one, "value", one) for key, one in node.items.items()}):
                root = drop(root, join(path, old))
                root = put(root, join(path, new), node.items[old], node.key_mark(old)) if new else root
        for path, node in list(walk(root.items["steps"], "steps")) if "steps" in root.items else ():
            if isinstance(node, Scalar) and isinstance(node.value, str) and node.value.startswith(_RECIPE):
                part = self.choice(path, node.value, node.mark, file, join(place, path), (*chain, file))
                above, _, last = path.rpartition(".")
                holder = find(root, above)
                if holder is None:
                    raise fail(
                        "a recipe cannot be placed under a key that contains a dot; rename the key", node.mark, path
                    )
                if not isinstance(holder, Map):
                    raise fail("a recipe cannot be an item of a list; put it in a mapping", node.mark, path)
                root = put(root, path, part, holder.key_mark(last))
        return root

    def choice(self, slot: str, choice: str, mark: Mark, file: Path, place: str, chain: tuple[Path, ...]) -> Map:
        """The tree that a choice stands for, ready to be laid under `slot` of `file`."""
        if place.count(".") >= MAX_DEPTH:
            raise fail(f"values are nested more than {MAX_DEPTH} levels deep", mark, printable(place, 100))
        if choice.startswith(_RECIPE):
            inner = self.roots.recipe(choice.removeprefix(_RECIPE), mark, file.parent)
            _refuse_cycle(inner, chain, mark)
            moved = reroot(self.recipe(inner, place, chain, mark).without(*RESERVED), slot)
            assert isinstance(moved, Map)
            return moved
        ingredient = self.roots.require_ingredient(slot, choice, mark)
        _refuse_cycle(ingredient, chain, mark)
        return self._layers(ingredient, place, chain, mark, is_foreign=self.roots.is_foreign(ingredient))

    def _layers(
        self, file: Path, place: str, chain: tuple[Path, ...], taken_at: Mark | None, *, is_foreign: bool,
        is_recipe: bool = False,
    ) -> Map:  # fmt: skip
        if taken_at is not None and is_foreign:
            own = read_foreign(file, taken_at, (TARGET, "defaults"))
        else:
            own = read(file, taken_at)
        self._files, self._nodes = self._files + 1, self._nodes + sum(1 for _ in walk(own))
        if self._files > MAX_FILES or self._nodes > MAX_NODES:
            text = f"a recipe may include at most {MAX_FILES} files with {MAX_NODES} values in all"
            raise fail(text, taken_at or own.mark)
        below: Node = Map({}, own.mark, made=True)
        for slot, choice, mark in _defaults(own):
            if not slot and not is_recipe:
                raise fail("only a recipe can build on a recipe; here, write {slot: choice}", mark, "defaults")
            if not slot:
                # The recipe that it builds on, which keeps its seed, and the run folder remains this one's own.
                name = choice.removeprefix(_RECIPE)
                inner = self.roots.recipe(name, mark, file.parent, but=file)
                _refuse_cycle(inner, (*chain, file), mark)
                base = self.recipe(inner, place, (*chain, file), mark).without("run_dir")
                if own.target() not in (None, base.target()):
                    raise fail(f"{name} is a {base.target()}, but with another class none of its values would be kept; "
                               f"remove {TARGET}", own.key_mark(TARGET), TARGET)  # fmt: skip
                below = merge(below, base)
                continue
            if swap := self.swaps.get(join(place, slot)):
                choice, mark = swap.text, swap.mark
                self.used.add(swap.path)
            part = self.choice(slot, choice, mark, file, join(place, slot), (*chain, file))
            below = merge(below, nest(slot, part, mark))
        merged = merge(below, own.without("defaults"))
        assert isinstance(merged, Map)
        for path in sorted(self.used):
            if place and not path.startswith(f"{place}."):
                continue
            inside = path.removeprefix(f"{place}.") if place else path
            chosen, present = find(below, inside), find(merged, inside)
            if isinstance(chosen, Map) and not (isinstance(present, Map) and present.target() == chosen.target()):
                merged = put(merged, inside, chosen, self.swaps[path].mark)
        return merged


def _defaults(own: Map) -> list[tuple[str, str, Mark]]:
    """The (slot, choice) pairs of a file; the slot is empty for a recipe that it builds on."""
    node = own.items.get("defaults", Seq((), own.mark))
    if not isinstance(node, Seq):
        raise fail("defaults must be a list such as [{model: dit_xl}, {precision: fp32}]", node.mark, "defaults")
    pairs: list[tuple[str, str, Mark]] = []
    for item in node.items:
        if isinstance(item, Scalar) and str(item.value).startswith(_RECIPE):
            pairs.append(("", str(item.value), item.mark))
            continue
        if not isinstance(item, Map) or len(item.items) != 1:
            hint = ", such as {model: dit_s}" if isinstance(item, Scalar) else ""
            if isinstance(item, Scalar) and item.value == "_self_":  # Hydra's
                hint = "; this file always overrides them; remove _self_"
            raise fail(f"each entry of defaults must be one {{slot: choice}}{hint}", item.mark, "defaults")
        ((slot, choice),) = item.items.items()
        if not is_address(slot):
            word, _, rest = slot.rpartition(" ")
            better = rest.lstrip("/").replace("/", ".").partition("@")[0]  # of Hydra's
            why = "later ones override earlier ones, so no `override` is needed; " if word == "override" else ""
            hint = f"{why}write {{{better}: ...}}" if is_address(better) else "write names joined by dots"
            raise fail(f"{printable(slot, 100)!r} is not a slot; {hint}", item.key_mark(slot), "defaults")
        if not isinstance(choice, Scalar) or not isinstance(choice.value, str):
            raise fail(f"the choice for {slot} must be a name: a file conf/{slot}/<name>.yaml", choice.mark, "defaults")
        pairs.append((slot, choice.value, choice.mark))
    return pairs


def _refuse_cycle(file: Path, chain: tuple[Path, ...], mark: Mark) -> None:
    names = [shown_path(str(link)) for link in (*chain, file)]
    if file.resolve() in {link.resolve() for link in chain}:
        raise fail(f"these files include each other: {' -> '.join(names)}", mark)
    if len(chain) > MAX_INCLUDES:
        raise fail(f"files are included more than {MAX_INCLUDES} levels deep: {names[0]} -> ... -> {names[-1]}", mark)
