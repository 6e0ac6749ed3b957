"""Gives `nemo-vfm run` each of its options a value that is not the default."""

import argparse

from nemo_vfm.cli.main import VerbParser
from nemo_vfm.cli.verbs import run
from tests.support.recipe_folder import PARTS, Kitchen

_NO_OPTIONS = {"help", "recipe", "overrides", "sweep", "only", "part"}  # a part or a step is not a whole run


def every_option(kitchen: Kitchen) -> tuple[argparse.ArgumentParser, list[argparse.Action], list[str]]:
    """The parser of a run, its options, new ones among them, and words that set each for a recipe of `Count`."""
    kitchen.write("own/overlay/longer.yaml", "for: @.Count\nset: {duration: 2 steps}\n")
    parser = VerbParser()
    run.add_arguments(parser)
    options = [action for action in parser._actions if action.dest not in _NO_OPTIONS]
    assert {"overlay", "trust", "preempt", "max_restarts", "rank_timeout"} <= {one.dest for one in options}
    values = {"conf": kitchen.folder / "own", "overlay": "longer", "trust": PARTS, "preempt": "TERM"}
    return parser, options, [f"{one.option_strings[-1]}={values.get(one.dest, 7)}" for one in options]
