"""Converts a composed recipe to OmegaConf's `DictConfig` and back; values that nobody changed keep their places.

The root's metadata carries the recipe. It survives a copy, a pickle and `OmegaConf.merge`, which the metadata of single
values does not. A value that differs from the recipe's, or has no place there, is shown as one of "the config".
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf

from nemo_vfm.config.compose import ComposedRecipe, with_reserved
from nemo_vfm.config.emit import text_of
from nemo_vfm.config.interpolate import replace_forms, resolve
from nemo_vfm.config.recipe_errors import Mark, RecipeError, SourceText, fail, printable
from nemo_vfm.config.roots import Roots
from nemo_vfm.config.tree import Map, Node, Scalar, Seq, child, join, map_scalars, to_plain
from nemo_vfm.config.yaml_source import MAX_DEPTH, MAX_NODES
from nemo_vfm.core.errors import UserError

NO_FILE = Path("config")  #: stands for the recipe's file where a config was made by hand
_ORIGIN = "nemo_vfm_recipe"
_RELATIVE = re.compile(r"\$\{(\.+)([\w.-]*)\}")


def to_dict_config(composed: ComposedRecipe) -> DictConfig:
    """The recipe, interpolations still in place; `${env:NAME}` becomes `${oc.env:NAME}`, which OmegaConf resolves.

    Raises:
        RecipeError: an interpolation is wrong, such as one that computes.
    """
    problems = resolve(composed.root, keep_env=True)[1]
    if problems:
        raise RecipeError(problems)
    values: Any = to_plain(map_scalars(composed.root, lambda one: replace(one, value=_with_env(one.value))))
    config = OmegaConf.create(values)
    assert isinstance(config, DictConfig)
    setattr(config._metadata, _ORIGIN, composed)
    return config


def from_dict_config(config: object) -> ComposedRecipe:
    """The recipe that a config is a part of; a mapping made by hand is a recipe without a file.

    Raises:
        UserError: it is not a mapping.
        RecipeError: a value could not stand in a recipe.
    """
    made = (
        OmegaConf.create(dict(config)) if isinstance(config, Mapping) and not isinstance(config, DictConfig) else None
    )
    root = config._get_root() if isinstance(config, DictConfig) else made
    if not isinstance(root, DictConfig) or root._is_none() or root._is_missing():
        raise UserError(f"a recipe is a mapping, got {type(config).__name__}; give what compose() returns, or a "
                        f"DictConfig whose root has a _target_")  # fmt: skip
    origin: ComposedRecipe | None = getattr(root._metadata, _ORIGIN, None)
    values = OmegaConf.to_container(root, resolve=False, enum_to_str=True)
    tree = _tree(values, origin.root if origin is not None else None, "", 0, itertools.count(1))
    assert isinstance(tree, Map)
    if origin is not None:
        return replace(origin, root=with_reserved(tree, origin.path.stem))
    return ComposedRecipe(with_reserved(tree, NO_FILE.name), NO_FILE, Roots.standard())


def address_of(config: object) -> str:
    """Where a part stands in its recipe, as a dotted address; empty for the whole."""
    keys: list[str] = []
    while isinstance(config, Container) and (above := config._get_parent()) is not None:
        keys.append(str(config._key()))
        config = above
    return join(*reversed(keys))


def _with_env(value: Any) -> Any:
    """A value in which references to the environment, and literal `${`, are spelled as OmegaConf spells them."""
    if not isinstance(value, str):
        return value
    value = replace_forms(value, lambda match: f"${{oc.env:{match['variable']}}}" if match["env"] else match[0])
    return value.replace("$${", r"\${")


def _tree(value: object, origin: Node | None, path: str, depth: int, numbers: Iterator[int]) -> Node:
    """A plain value with all below it, along the tree of the recipe that it came from; each takes a number."""
    if next(numbers) > MAX_NODES or depth > MAX_DEPTH:
        raise fail(f"a recipe holds at most {MAX_NODES} values, at most {MAX_DEPTH} deep", _mark(path, "..."), path)
    if isinstance(value, list):
        olds = [None if origin is None else child(origin, str(i)) for i in range(len(value))]
        items = [_tree(one, olds[i], join(path, str(i)), depth + 1, numbers) for i, one in enumerate(value)]
        return Seq(tuple(items), origin.mark if isinstance(origin, Seq) else _mark(path, "[...]"))
    if not isinstance(value, dict):
        return _scalar(value, origin, path)
    known = origin if isinstance(origin, Map) else Map({}, _mark(path, "{...}"))
    texts = [str(key).lower() if isinstance(key, bool) else str(key) for key in value]  # OmegaConf also takes numbers
    for key in texts:
        if not key or not key.isascii() or not key.isprintable() or "${" in key:
            raise fail(f"the key {key!a} is not plain ASCII text; keys are letters, digits, _ and -",
                       _mark(path, "{...}"), path)  # fmt: skip
    below = {key: _tree(one, child(known, key), join(path, key), depth + 1, numbers)
             for key, one in zip(texts, value.values(), strict=True)}  # fmt: skip
    keys = {key: known.keys.get(key) or replace(one.mark, column=1) for key, one in below.items()}
    return replace(known, items=below, keys=keys)


def _scalar(value: object, origin: Node | None, path: str) -> Scalar:
    known = _with_env(origin.value) if isinstance(origin, Scalar) else None
    if isinstance(origin, Scalar) and type(known) is type(value) and known == value:
        return origin
    value = str(value) if isinstance(value, Path) else value
    if not isinstance(value, bool | int | float | str | None):
        raise fail(f"a recipe can hold only text, numbers, true, false and null, got {type(value).__name__}",
                   _mark(path, type(value).__name__), path)  # fmt: skip
    if isinstance(value, float) and value - value != 0:
        text = f"{value} is not a finite number; recipes hold finite numbers only"
        raise fail(text, _mark(path, str(value)), path)
    if isinstance(value, str):
        if re.search("[\x00\ud800-\udfff]", value):
            raise fail("this text contains a NUL or half a surrogate pair", _mark(path, "..."), path)
        value = _RELATIVE.sub(lambda match: _absolute_reference(match, path), value.replace(r"\${", "$${"))
    return Scalar(value, _mark(path, text_of(value)))


def _absolute_reference(match: re.Match[str], path: str) -> str:
    """`${..name}` counted from the root: one dot is the mapping that the value stands in."""
    above = path.split(".")[: -len(match[1])]
    return f"${{{join(*above, match[2])}}}" if len(match[1]) <= path.count(".") + 1 else match[0]


def _mark(path: str, text: str) -> Mark:
    key = path.rpartition(".")[2]
    line = printable(f"{key}: {text}" if key else text, 1000)
    return Mark(SourceText("the config", (line,), is_file=False), 1, len(line) - len(text) + 1 if key else 1)
