"""Parses texts such as `optimizer.lr=1e-4,3e-4` into all combinations, each as changes and a run folder."""

import argparse
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.overrides import alternatives, parse_override, swept_words
from nemo_vfm.config.tree import to_plain
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.job import RECIPE
from nemo_vfm.runtime.command import composed_recipe, run_folder

MAX_POINTS = 1000
_MAX_NAME = 100
_OF_HYDRA = re.compile(r"(?:^|,)\s*(range|choice|interval|glob|shuffle|sort|tag)\(([^()]*)")


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """One thing that a sweep changes."""

    path: str  #: its dotted address, or a slot
    choices: tuple[str, ...]  #: the texts it takes, in order


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    name: str  #: its folder: a function of its choices alone, so that a sweep can grow
    choices: dict[str, str]  #: the value on each axis, by the axis's address

    def words(self) -> list[str]:
        """Its changes, as one would type them."""
        return [f"{path}={choice}" for path, choice in self.choices.items()]


def axes(words: Sequence[str]) -> list[SweepAxis]:
    """Read `path=choice,choice`; commas inside brackets and quotes do not separate."""
    found = []
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path or path == "run_dir" or path.startswith("~"):
            raise UserError(f"--sweep takes address=value,value, such as optimizer.lr=1e-4,3e-4; got {word!r}")
        if form := _OF_HYDRA.search(text):
            raise UserError(f"--sweep {word}: {form[1]}(...) is Hydra syntax; here values are written out: "
                            f"{path}={_written_out(form[1], form[2])}")  # fmt: skip
        choices = tuple(alternatives(text))
        if "" in choices:
            raise UserError(f"--sweep {word}: a value is empty; write null for nothing, '\"\"' for the empty text")
        first: dict[str, str] = {}
        for choice in choices if len(choices) > 1 else ():  # 1e-3 and 0.001 are one value to a recipe
            node = parse_override(f"{path}={choice}").value
            assert node is not None
            meaning = json.dumps(json.loads(json.dumps(to_plain(node)), parse_float=_whole_as_int), sort_keys=True)
            if meaning in first:
                raise UserError(
                    f"--sweep {word}: a value is given twice, as {first[meaning]} and as {choice}; drop one"
                )
            first[meaning] = choice
        found.append(SweepAxis(path, choices))
    if not found:
        raise UserError("--sweep takes address=value,value, such as optimizer.lr=1e-4,3e-4, got none")
    paths = [axis.path for axis in found]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise UserError(f"--sweep names {twice} twice; give all its values in one argument: {twice}=a,b,c")
    return found


def points(swept: Sequence[SweepAxis]) -> list[Point]:
    """Every combination, the last axis turning fastest."""
    short = dict(zip((axis.path for axis in swept), _shorten([axis.path for axis in swept]), strict=True))
    if (count := math.prod(len(axis.choices) for axis in swept)) > MAX_POINTS:
        raise UserError(f"this sweep has {count:,} points, but at most {MAX_POINTS:,} are run; give fewer values, or "
                        f"split it")  # fmt: skip
    combinations = itertools.product(*(axis.choices for axis in swept))
    chosen = [dict(zip(short, combination, strict=True)) for combination in combinations]
    return [Point(_name({short[path]: choice for path, choice in one.items()}), one) for one in chosen]


def _written_out(form: str, inside: str) -> str:
    """The values of Hydra's `choice` and `range`, where they are plain; else letters in their place."""
    parts = [part.strip() for part in inside.split(",")]
    if form == "choice":
        return ",".join(parts)
    numbers = [int(part) for part in parts if re.fullmatch(r"[-+]?\d{1,9}", part)]
    if form != "range" or len(numbers) < len(parts) or len(parts) > 3 or 0 in numbers[2:]:
        return "A,B,C"
    values = range(*numbers)
    return ",".join(map(str, values[:10])) + (",..." if len(values) > 10 else "")


def _whole_as_int(text: str) -> float:
    return int(float(text)) if float(text).is_integer() else float(text)


def _shorten(paths: Sequence[str]) -> list[str]:
    """Each address by its last parts, as many as tell it from the others."""
    for length in range(1, max(path.count(".") for path in paths) + 2):
        ends = [".".join(path.split(".")[-length:]) for path in paths]
        if len(set(ends)) == len(ends):
            return ends
    return list(paths)


def _name(choices: dict[str, str]) -> str:
    """`lr=1e-4,model=dit_s`; what a folder's name cannot hold becomes _, and a hash keeps such names apart."""
    plain = ",".join(f"{key}={choice}" for key, choice in choices.items())
    safe = re.sub(r"[^\w.,=+-]", "_", conceal_keys(plain), flags=re.ASCII)[:_MAX_NAME].lstrip(".-")
    return safe if safe == plain else f"{safe}-{sha256_text(plain)[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep that was understood."""

    arguments: argparse.Namespace  #: of the verb; changes that sweep nothing are among its overrides
    axes: Sequence[SweepAxis]  #: what is swept
    points: Sequence[Point]  #: every combination
    folder: Path  #: where the runs lie
    place: Path  #: the same as it is written down: there variables of the environment stay names

    def changes(self, point: Point) -> list[str]:
        """Of the recipe, for one combination: its values and its folder."""
        return [*point.words(), f"run_dir={self.place / point.name}"]

    def words(self, point: Point) -> list[str]:
        """What follows `nemo-vfm run` for one combination."""
        given = vars(self.arguments)
        repeated = ("conf", "overlay", "trust", "allow", "allow_host", "preempt")
        pairs = [(name, value) for name in repeated for value in given.get(name, ())]
        pairs += [(name, given[name]) for name in ("max_restarts", "rank_timeout", "rank_silence") if name in given]
        options = [f"--{name.replace('_', '-')}={value}" for name, value in pairs]
        return [self.arguments.recipe, *self.arguments.overrides, *self.changes(point), *options]

    def arguments_of(self, point: Point) -> argparse.Namespace:
        """The arguments of one combination, which sweeps nothing."""
        overrides = [*self.arguments.overrides, *self.changes(point)]
        return argparse.Namespace(**{**vars(self.arguments), "overrides": overrides, "sweep": []})


def sweep_plan(arguments: argparse.Namespace) -> SweepPlan:
    """Read `--sweep`."""
    words = swept_words(arguments.sweep)
    changes = [word for word in arguments.sweep if word not in words]
    own = argparse.Namespace(**{**vars(arguments), "overrides": [*arguments.overrides, *changes]})
    found = axes(words)
    given = [word.partition("=")[0] for word in own.overrides]
    if both := [axis.path for axis in found if axis.path in given]:
        raise UserError(f"{both[0]} is set both by a change and by --sweep; drop one of them")
    # What `run_dir` says, else beside the recipe's own folder; and the same with names of variables kept.
    composed = composed_recipe(own, [f"{axis.path}={axis.choices[0]}" for axis in found])
    folder = run_folder(composed)
    place = Path(str(to_plain(resolve(composed.root, keep_env=True)[0].items["run_dir"])))
    if "run_dir" not in given:
        folder, place = (path.parent / f"{path.name}-sweep" for path in (folder, place))
    if (folder / RECIPE).is_file():
        raise RunFolderError(f"{folder} holds a run, not a sweep; choose another run_dir")
    return SweepPlan(arguments=own, axes=found, points=points(found), folder=folder, place=place)
