"""Tests what the tasks of jobs get, and where they write, on a real Slurm."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.plan.launch import limit_s
from launcher.render.job import SlurmJob
from launcher.render.script import script
from tests.launcher.render.test_quoting import HOSTILE, PRINTABLE
from tests.support.slurm import Slurm as RealSlurm
from tests.support.slurm_jobs import small_job

TELL = """
import json, os, sys
from pathlib import Path
name = f"{os.environ['SLURM_PROCID']}.json"
Path(sys.argv[1], name).write_text(json.dumps([sys.argv[2:], dict(os.environ), sorted(os.sched_getaffinity(0))]))
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")


def submitted(cluster: RealSlurm, job: SlurmJob, *options: str) -> str:
    """The number of a job whose script is submitted as it is."""
    (job.folder / "logs").mkdir(parents=True)
    (job.folder / "job.sh").write_text(script(job), encoding="utf-8")
    return cluster.say("sbatch", "--parsable", *options, str(job.folder / "job.sh"))


def telling(folder: Path, **changes: object) -> SlurmJob:
    """A job whose tasks write down what they got."""
    out = folder / "told"
    out.mkdir(parents=True)
    return replace(small_job(folder), command=(sys.executable, "-c", TELL, str(out)), **changes)


def told(folder: Path) -> list[list]:
    """Words, variables and cores of each task."""
    return [json.loads(file.read_text()) for file in sorted((folder / "told").glob("*.json"))]


@pytest.mark.parametrize("folder", ["50%j a'b", "%x#"])
def test_hostile_words_and_folders_go_through_a_real_sbatch_and_srun_as_they_are(real_slurm, tmp_path: Path, folder):
    words = tuple(text for text in HOSTILE if text)  # real srun, too, gets the empty word below
    job = telling(tmp_path / folder, words=(*words, ""), name="a'b%j", nodes=2, tasks_per_node=2, title=PRINTABLE[0])
    job = replace(job, cluster=replace(job.cluster, environment={"VALUE": PRINTABLE[1]}, exclusive=False))
    number = submitted(real_slurm, job)
    real_slurm.until_state(number, *ENDED)
    log = job.folder / "logs" / f"a'b%j-{number}.out"
    assert log.is_file(), [file.name for file in (job.folder / "logs").iterdir()]
    found = told(tmp_path / folder)
    assert [one[0] for one in found] == [["run", str(job.recipe), f"run_dir={job.run_dir}", *words, ""]] * 4, (
        log.read_text()
    )
    assert {one[1]["VALUE"] for one in found} == {PRINTABLE[1]}
    assert sorted({one[1]["SLURMD_NODENAME"] for one in found}) == ["n1", "n2"]
    assert "\tok\t" in (job.folder / "attempts.tsv").read_text()
    assert not list(tmp_path.rglob("canary"))


def test_time_limits_are_read_as_slurm_reads_them(real_slurm):
    for time in ("30", "4:00", "4:01", "4:00:00", "90:0", "2-0", "2-12", "1-1:30", "1-00:00:30", "0:61"):
        number = real_slurm.say("sbatch", "--parsable", "--hold", f"--time={time}", "--signal=USR1@65520",
                                "--wrap=true")  # fmt: skip
        days, _, clock = real_slurm.job(number)["TimeLimit"].rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        assert limit_s(time) == 86_400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds, time
        real_slurm.say("scancel", number)
