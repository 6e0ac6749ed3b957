"""Parses the command line of `nemo-vfm`, runs the verb that it names, and returns its exit status."""

import argparse
import difflib
from pathlib import Path
from typing import NoReturn

from nemo_vfm.core import __version__
from nemo_vfm.core.program import Program

_UNKNOWN = "unrecognized arguments: "


class VerbParser(argparse.ArgumentParser):
    """argparse's parser with a hint where a word is not known: other tools take `--model.depth 12`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and the nearest thing that is right."""
        word, *rest = message.partition(_UNKNOWN)[2].split() or [""]
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-"):
            if close := difflib.get_close_matches(f"--{name}", list(self._option_string_actions), n=1, cutoff=0.8):
                message += f"; did you mean {close[0]}?"
            elif any(action.dest == "overrides" for action in self._actions):
                value = value or next(iter(rest), "VALUE")
                message += f"; a change is written without dashes: {name}={value}"
        super().error(message)


PROGRAM = Program(
    name="nemo-vfm", about="From raw video to a trained world model, by recipe.",
    folder=Path(__file__).parent / "verbs", package="nemo_vfm.cli.verbs",
    version=f"nemo_vfm {__version__}", parser=VerbParser,
    exits="""exit status: 0 ok, 1 something unexpected, 2 you can fix it, 3 nothing was kept, 69 another rank was lost,
75 preempted (run the same command again to resume), 76 the next phase needs
another number of devices, 130 interrupted
environment: NEMO_VFM_LOG_LEVEL=DEBUG, INFO, WARNING or ERROR is the least that is logged; others:
docs/reference/environment.md""",
)  # fmt: skip

#: Runs one verb; its words are taken from the process if none are given.
main = PROGRAM.main
