"""Tests the answers of a real Slurm as values, and that a surrounding job does not leak into a new one."""

import os
from pathlib import Path

import pytest

from launcher.slurm import slurm
from launcher.slurm.slurm import Machines, clean
from nemo_vfm.core.errors import UserError
from tests.support.slurm import Slurm, lacking
from tests.support.slurm import slurm as cluster_in


def script(folder: Path, *lines: str) -> Path:
    path = folder / "job.sh"
    path.write_text("\n".join(["#!/bin/bash", f"#SBATCH --output={folder}/out-%A_%a", *lines, ""]))
    return path


def test_a_job_is_submitted_seen_and_cancelled(slurm_here: Slurm, tmp_path: Path):
    number = slurm.submit(script(tmp_path, "#SBATCH --job-name=a|b", "sleep 60"), tmp_path)
    after = slurm.submit(script(tmp_path, "true"), tmp_path, after=[number])
    slurm_here.until_state(number, "RUNNING")
    found = slurm.squeue([number, after])
    assert set(found) == {number, after} and found[number].name == "a|b" and found[number].nodes == "n1"
    assert found[number].waits_or_runs and found[after].reason == "Dependency"
    slurm.cancel([number, after])
    slurm_here.until_state(number, "CANCELLED")
    assert {job.state for job in slurm.squeue([number, after]).values()} == {"CANCELLED"}
    assert not slurm.squeue([number])[number].waits_or_runs
    assert slurm.squeue(["1"]) == {} and slurm.squeue([]) == {}


def test_a_job_whose_predecessor_fails_is_never_begun(slurm_here: Slurm, tmp_path: Path):
    number = slurm.submit(script(tmp_path, "exit 3"), tmp_path)
    after = slurm.submit(script(tmp_path, "touch begun"), tmp_path, after=[number])
    slurm_here.until_state(after, "CANCELLED")
    assert slurm_here.job(number)["ExitCode"] == "3:0" and not (tmp_path / "begun").exists()


def test_each_task_of_an_array_is_seen(slurm_here: Slurm, tmp_path: Path):
    number = slurm.submit(script(tmp_path, "exit $(( SLURM_ARRAY_TASK_ID == 1 ))"), tmp_path, words=["--array=0-2"])
    slurm_here.until(lambda: not any(job.waits_or_runs for job in slurm.squeue([number]).values()), "end of the array")
    states = {id: job.state for id, job in slurm.squeue([number]).items()}
    assert states == {f"{number}_0": "COMPLETED", f"{number}_1": "FAILED", f"{number}_2": "COMPLETED"}


def test_the_cluster_is_asked_what_its_nodes_have(slurm_here: Slurm):
    assert slurm.machines() == Machines(count=2, cores=16, memory_gb=1, gpus=0, gpu="")
    assert slurm.machines("debug") == slurm.machines()
    assert "none" in slurm.mpi_flavours() and len(slurm.mpi_flavours()) >= 2


def test_what_slurm_refuses_is_said_in_its_words(slurm_here: Slurm, tmp_path: Path):
    with pytest.raises(UserError, match=r"sbatch refused: .*invalid partition specified: nowhere"):
        slurm.submit(script(tmp_path, "true"), tmp_path, words=["--partition=nowhere"])
    with pytest.raises(UserError, match="scancel refused"):
        slurm.cancel(["no-job"])


@pytest.mark.skipif(bool(lacking()) or os.geteuid() != 0, reason="a real Slurm is needed, and root for device files")
def test_gpus_that_slurm_knows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with cluster_in(tmp_path, nodes=1, gpus=4) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        found = slurm.machines()
    assert found is not None and found.gpus == 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:h100:8(S:0-1)", (8, "h100")), ("gpu:4", (4, "")), ("(null)", (0, "")),
        ("nvme:1,gpu:a100:2(S:0)", (2, "a100")), ("gpu:a100:4,gpu:a100:4", (8, "a100")),
    ],
)  # fmt: skip
def test_gpus_are_read_from_what_administrators_write(monkeypatch, text: str, found: tuple[int, str]):
    monkeypatch.setattr(slurm, "_output_of", lambda *words: f"n1|8|64000|{text}\n")
    machines = slurm.machines("debug")
    assert machines is not None and (machines.gpus, machines.gpu) == found


def test_a_machine_without_slurm_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not slurm.is_here()
    with pytest.raises(UserError, match="there is no squeue on this machine; submit from a login node"):
        slurm.squeue(["1"])


def test_a_job_around_us_does_not_reach_a_new_one(slurm_here: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SLURM_NTASKS", "SLURM_JOB_ID", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "PMIX_RANK", "RANK",
                 "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "SQUEUE_FORMAT", "SLURMD_NODENAME"):  # fmt: skip
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("OWN", "kept")
    number = slurm.submit(script(tmp_path, f"env > {tmp_path}/env"), tmp_path)
    slurm_here.until_state(number, "COMPLETED")
    lines = (tmp_path / "env").read_text().splitlines()
    assert "OWN=kept" in lines and not [line for line in lines if line.endswith("=7")]
    assert slurm.squeue([number])[number].state == "COMPLETED"


def test_where_nobody_started_us_as_a_rank_the_place_to_meet_is_the_users():
    assert clean({"MASTER_ADDR": "10.0.0.1", "SLURM_CONF": "/etc/s", "A": "b"}) == {
        "MASTER_ADDR": "10.0.0.1", "SLURM_CONF": "/etc/s", "A": "b",
    }  # fmt: skip
