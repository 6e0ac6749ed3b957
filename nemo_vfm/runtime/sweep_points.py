"""Lists every combination of a sweep with its changes to the recipe and its run folder."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.config.overrides import swept
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.runtime.command import composed_recipe, run_folder
from nemo_vfm.runtime.sweep_grid import Axis, Point, axes, points


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep that was understood."""

    arguments: argparse.Namespace  #: of the verb; changes that sweep nothing are among its overrides
    axes: Sequence[Axis]  #: what is swept
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

    def alone(self, point: Point) -> argparse.Namespace:
        """The arguments of one combination, which sweeps nothing."""
        overrides = [*self.arguments.overrides, *self.changes(point)]
        return argparse.Namespace(**{**vars(self.arguments), "overrides": overrides, "sweep": []})


def sweep_plan(arguments: argparse.Namespace) -> SweepPlan:
    """Read `--sweep`."""
    words = swept(arguments.sweep)
    changes = [word for word in arguments.sweep if word not in words]
    own = argparse.Namespace(**{**vars(arguments), "overrides": [*arguments.overrides, *changes]})
    found = axes(words)
    folder, place = _folder(own, found)
    return SweepPlan(arguments=own, axes=found, points=points(found), folder=folder, place=place)


def _folder(arguments: argparse.Namespace, found: Sequence[Axis]) -> tuple[Path, Path]:
    """What `run_dir` says, else beside the recipe's own folder; and the same with names of variables kept."""
    from nemo_vfm.config.interpolate import resolve
    from nemo_vfm.config.tree import plain

    given = [word.partition("=")[0] for word in arguments.overrides]
    if both := [axis.path for axis in found if axis.path in given]:
        raise UserError(f"{both[0]} is set both by a change and by --sweep; drop one of them")
    composed = composed_recipe(arguments, [f"{axis.path}={axis.choices[0]}" for axis in found])
    folder = run_folder(composed)
    place = Path(str(plain(resolve(composed.root, keep_env=True)[0].items["run_dir"])))
    if "run_dir" not in given:
        folder, place = (path.parent / f"{path.name}-sweep" for path in (folder, place))
    if (folder / "recipe.yaml").is_file():
        raise RunFolderError(f"{folder} holds a run, not a sweep; choose another run_dir")
    return folder, place
