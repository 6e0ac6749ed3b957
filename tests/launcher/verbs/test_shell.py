"""Tests what a shell on the node gets from `vfm-launch shell`, with a fake srun and a real one."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main
from launcher.render.script import shell_script
from launcher.request.cluster import Apptainer, Pyxis
from launcher.request.cluster import Slurm as Cluster
from launcher.verbs.shell import _job
from tests.launcher.render.test_quoting import PRINTABLE
from tests.support.fake_queue import FakeQueue
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import small_job

RECIPE = "_target_: tests.support.needing.Needs\n"
SHELL = ("shell", "r.yaml", "cluster=cpu_slurm", "cluster.cpus_per_node=2", "--trust", "tests.support.needing")


@pytest.fixture
def desk(desk: Path) -> Path:
    """A working directory with a recipe."""
    (desk / "r.yaml").write_text(RECIPE)
    return desk


def test_the_shell_has_the_jobs_variables_secrets_and_size_and_nothing_is_written(desk, tmp_path, monkeypatch, capfd):
    queue = FakeQueue(tmp_path / "slurm")
    (queue.bin / "srun").write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/words; env > {tmp_path}/env; exit 5\n'
    )
    monkeypatch.setenv("PATH", f"{queue.bin}{os.pathsep}{os.environ['PATH']}")
    key = tmp_path / "key"
    key.write_text("canary-91\n")
    key.chmod(0o600)
    words = [*SHELL, "cluster.environment={TZ: UTC}", f"cluster.secrets={{WANDB_API_KEY: {key}}}", "cluster.account=us",
             "cluster.mpi=none"]  # fmt: skip
    assert main([*words, "--dry-run"]) == 0
    shown = capfd.readouterr().out
    assert main(words) == 5
    said = (tmp_path / "words").read_text().splitlines()
    assert said[0] == "--pty" and said[-2:] == ["bash", "-i"]
    assert {"--account=us", "--nodes=1", "--ntasks=1", "--exclusive", "--time=4:00:00", f"--chdir={desk}"} <= set(said)
    kept = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert (kept["TZ"], kept["WANDB_API_KEY"], kept["HF_HUB_OFFLINE"]) == ("UTC", "canary-91", "1")
    assert "canary-91" not in shown + "".join(said) and os.listdir(desk) == ["r.yaml"]  # noqa: PTH208


def test_containers_gpus_and_modules_are_those_of_the_job(tmp_path: Path):
    text = shell_script(small_job(tmp_path, Cluster(container=Pyxis(image="/i.sqsh"), modules=["cuda"]),
                                  gpus_per_node=8, tasks_per_node=8, cpus_per_task=4, nodes=4))  # fmt: skip
    assert "module load cuda" in text and "--container-image=/i.sqsh" in text
    assert "--gpus-per-node=8" in text and "--cpus-per-task=32" in text and "--nodes=1" in text
    job = small_job(tmp_path, Cluster(container=Apptainer(image="/i.sif"), gpu_request="gres"), gpus_per_node=1)
    assert "apptainer" in shell_script(job) and "--gres=gpu:1" in shell_script(job)


def test_hostile_words_stay_words_and_shellcheck_has_nothing_to_say(tmp_path: Path):
    for number, text in enumerate(PRINTABLE):
        cluster = Cluster(account=text, partition=text, environment={"VALUE": text}, options={"licenses": text})
        script = shell_script(small_job(tmp_path, cluster))
        fakes = tmp_path / str(number)
        fakes.mkdir()
        (fakes / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$FAKES/words"\n')
        (fakes / "srun").chmod(0o755)
        path = f"{fakes}:{os.environ['PATH']}"
        subprocess.run(["bash", "-c", script], env={"PATH": path, "FAKES": str(fakes)}, cwd=tmp_path, check=True)
        assert f"--account={text}" in (fakes / "words").read_text().split("\0")
        if shutil.which("shellcheck"):
            words = ["shellcheck", "-s", "bash", "-e", "SC2016,SC1003", "-"]  # what stands in single quotes is meant so
            done = subprocess.run(words, input=script, text=True, capture_output=True)
            assert done.returncode == 0, done.stdout
    assert not list(tmp_path.rglob("canary"))


def test_a_real_slurm_opens_it_in_a_terminal(slurm_here: Slurm, desk):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "launcher", *SHELL, "cluster.exclusive=false", "cluster.environment={TZ: Test/Zone}"]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.write(ours, b"echo found-$TZ-on-$SLURMD_NODENAME; exit 3\n")
    said = b""
    while block := _more(ours):
        said += block
    assert process.wait(60) == 3 and b"found-Test/Zone-on-n" in said, said


def _more(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # nobody has the other end any more
        return b""


def test_a_shell_is_as_the_job_on_max_gpus_or_the_one_that_is_named():
    sizes = {"curate": (0, 8), "train": (8, 64), "sample": (8, 8)}
    shares = [SimpleNamespace(name=name, gpus_per_node=gpus, ranks=ranks) for name, (gpus, ranks) in sizes.items()]
    for order in (shares, shares[::-1]):
        names = [one.name for one in order]
        launch = SimpleNamespace(where=Cluster(), unknown=(), shares=order, jobs=lambda names=names: names)
        assert _job(launch, None) == "train" and [_job(launch, name) for name in names] == names


def test_what_cannot_be_is_said(desk, capfd, monkeypatch):
    for more, sentence in (("nodes=2", "on one node"), ("--parts=2", "for one run"), ("--job=x", "the jobs are job")):
        assert main([*SHELL, more, "--dry-run"]) == 2
        assert sentence in capfd.readouterr().err
    assert main([*SHELL[:2], "cluster=local", *SHELL[4:]]) == 2 and "is this machine" in capfd.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert main([*SHELL]) == 2 and "there is no srun on this machine" in capfd.readouterr().err
