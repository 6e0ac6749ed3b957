"""Runs the verb that `vfm-launch` was called with and returns its exit status."""

from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.core import __version__
from nemo_vfm.core.program import Program

PROGRAM = Program(
    name="vfm-launch", about="Submits recipes to a Slurm cluster and follows "
                             "them.", folder=Path(__file__).parent / "verbs",
    package="launcher.verbs", version=f"vfm-launch of nemo_vfm {__version__}",
    exits="exit status: 0 ok, 1 something unexpected, 2 you can fix it, 130 interrupted; on cluster=local the run's",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; `words` are taken from the process if None."""
    return PROGRAM.main(words)
