"""Runs the verb that the command line of `nemo-vfm` names, and returns its exit status."""

from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.cli.parser import VerbParser
from nemo_vfm.core import __version__
from nemo_vfm.core.program import Program

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


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; `words` are taken from the process if None."""
    return PROGRAM.main(words)
