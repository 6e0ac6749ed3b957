"""Tests that Slurm clusters started for tests run jobs, stay on this machine, and leave nothing behind."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.slurm import Slurm, lacking, marked, slurm

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"a real Slurm is needed: {lacking()}")
SCRIPT = "#!/bin/bash\nsrun --kill-on-bad-exit=0 bash -c 'echo task $SLURM_PROCID on $SLURMD_NODENAME; {then}'\n"
#: State 0A of /proc/net/tcp is a listener; addresses stand there byte by byte from behind.
LISTENS, LOOPBACK = "0A", {"0100007F", "0" * 24 + "01000000"}


def submitted(cluster: Slurm, folder: Path, then: str = "true") -> str:
    """The number of a job that says where its four tasks run."""
    (folder / "job.sh").write_text(SCRIPT.format(then=then))
    words = ("-N2", "--ntasks-per-node=2", f"--output={folder}/out", f"{folder}/job.sh")
    return cluster.say("sbatch", "--parsable", *words)


def listeners(pids: set[int]) -> set[str]:
    """The addresses, as the kernel writes them, at which these processes listen."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # it was closed since
                sockets.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[3] == LISTENS and line[9] in sockets}


def test_four_tasks_on_two_nodes_of_two_clusters_at_a_time(real_slurm: Slurm, tmp_path: Path):
    with slurm(tmp_path / "other") as other:
        (tmp_path / "first").mkdir()
        numbers = {real_slurm: submitted(real_slurm, tmp_path / "first"), other: submitted(other, tmp_path / "other")}
        for cluster, number in numbers.items():
            cluster.until_state(number, "COMPLETED")
    for folder in ("first", "other"):
        said = sorted((tmp_path / folder / "out").read_text().splitlines())
        assert said == ["task 0 on n1", "task 1 on n1", "task 2 on n2", "task 3 on n2"]


def test_nobody_beyond_this_machine_can_speak_to_the_cluster_or_to_its_jobs(real_slurm: Slurm, tmp_path: Path):
    number = submitted(real_slurm, tmp_path, then="sleep 60")
    real_slurm.until(lambda: (tmp_path / "out").is_file() and "task 3" in (tmp_path / "out").read_text(), "tasks")
    found = listeners(marked(str(real_slurm.conf)))
    real_slurm.say("scancel", number)
    assert found and found <= LOOPBACK


def test_a_test_process_that_is_killed_leaves_no_process_of_its_cluster(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from tests.support.slurm import slurm\n"
        "with slurm(Path(sys.argv[1])) as cluster: print('up', flush=True); time.sleep(600)"
    )
    started = subprocess.Popen([sys.executable, "-c", code, tmp_path / "s"], cwd=ROOT, stdout=subprocess.PIPE)
    assert started.stdout is not None and started.stdout.readline() == b"up\n"
    conf = str(tmp_path / "s" / "slurm.conf")
    assert len(marked(conf)) >= 4
    started.kill()
    started.communicate()
    end = time.monotonic() + 20
    while marked(conf) and time.monotonic() < end:
        time.sleep(0.05)
    assert not marked(conf)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_devices_are_given_to_tasks_by_number(tmp_path: Path):
    with slurm(tmp_path / "s", nodes=1, gpus=4) as cluster:
        done = cluster.say("srun", "-n1", "--gpus=2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done == "0,1"
