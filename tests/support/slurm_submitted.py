"""Submits a job's script to a test's Slurm, and reads what is kept of its attempts."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.render.batch_hooks import COLUMNS
from launcher.render.job import SlurmJob
from launcher.render.script import script
from launcher.slurm import slurm
from tests.support.repository import ROOT
from tests.support.slurm import Slurm

#: For ranks that are to meet: names of nodes here are nobody's address.
HERE = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass
class Submitted:
    """A job in the queue.

    Args:
        cluster: of the test.
        run_dir: its run folder.
        number: of the job.
    """

    cluster: Slurm
    run_dir: Path
    number: str

    def attempts(self, *columns: str) -> list[tuple[str, ...]]:
        lines = [line.split("\t") for line in (self.run_dir / "launch/attempts.tsv").read_text().splitlines()]
        return [tuple(dict(zip(COLUMNS, line, strict=True))[name] for name in columns) for line in lines]

    def story(self) -> str:
        """The log of all attempts, and what Slurm itself says."""
        return self.log() + self.cluster.said()

    def log(self) -> str:
        (file,) = (self.run_dir / "launch/logs").glob(f"*-{self.number}.out")
        return file.read_text()

    def ended(self, within_s: float = 240.0) -> str:
        """How, in Slurm's word."""
        return self.cluster.ended(self.number, within_s)["JobState"]


def put(cluster: Slurm, recipe: str, job: SlurmJob) -> Submitted:
    (job.folder / "logs").mkdir(parents=True)
    job.recipe.write_text(recipe)
    (job.folder / "job.sh").write_text(script(job))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        return Submitted(cluster, job.run_dir, slurm.submit(job.folder / "job.sh", ROOT))
