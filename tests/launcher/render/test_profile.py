"""Tests which ranks run under --profile, with a fake nsys that notes its calls."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.render.job import SlurmJob
from launcher.render.profile import ProfileSettings, parse_profile
from launcher.request.cluster import Slurm as Cluster
from nemo_vfm.core.errors import UserError
from tests.support.repository import ROOT
from tests.support.slurm import Slurm
from tests.support.slurm_submitted import put

NSYS = """\
#!/bin/bash
for word; do [[ $word == --output=* ]] && output="${word#--output=}"; done
printf '%s\\n' "$@" > "$output.nsys-rep"
while [[ $1 == --* || $1 == profile ]]; do shift; done
exec "$@"
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsys").write_text(NSYS)
    (tmp_path / "bin/nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")


def recording(folder: Path, *ranks: int) -> SlurmJob:
    """A job of two processes on each of two nodes that note their rank, and whether they heed USR1."""
    run_dir = folder / "run"
    text = f'trap "touch {folder}/heard-$SLURM_PROCID" USR1; kill -USR1 $$; touch {folder}/ran-$SLURM_PROCID'
    return SlurmJob(
        name="toy", run_id="0123456789ab", folder=run_dir / "launch", run_dir=run_dir, workdir=ROOT,
        recipe=run_dir / "launch/recipe.yaml", command=("bash", "-c", text), nodes=2, tasks_per_node=2,
        gpus_per_node=0, cpus_per_task=1, profile=ProfileSettings(ranks=ranks) if ranks else None,
        cluster=Cluster(exclusive=False),
    )  # fmt: skip


def test_chosen_ranks_run_under_nsys_on_a_real_slurm_and_the_others_do_not(real_slurm: Slurm, tmp_path, nsys):
    job = put(real_slurm, "", recording(tmp_path, 0, 3))
    assert job.ended() == "COMPLETED", job.story()
    reports = sorted((tmp_path / "run/launch/profile").iterdir())
    assert [file.name for file in reports] == [f"rank-{rank}-job-{job.number}-0.nsys-rep" for rank in (0, 3)]
    words = reports[0].read_text().splitlines()
    assert words[0] == "profile" and {"--delay=120", "--duration=60", "--kill=none"} <= set(words)
    assert [rank for rank in range(4) if (tmp_path / f"ran-{rank}").exists()] == [0, 1, 2, 3]
    assert not (tmp_path / "heard-0").exists(), "a shell cannot trap what it was begun without; Python can"
    assert (tmp_path / "heard-1").exists()


def test_nodes_without_nsys_end_the_job_at_once_and_say_so(real_slurm: Slurm, tmp_path):
    job = put(real_slurm, "", recording(tmp_path, 0))
    assert job.ended() == "FAILED" and job.attempts("status", "kind") == [("127", "configuration")]
    assert "nsys is not on the PATH of n1. Load it with cluster.modules" in job.log()
    assert not list(tmp_path.glob("ran-*"))


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (desk / "r.yaml").write_text("_target_: tests.support.needing.Needs\n")
    return desk


LOCAL = ("submit", "r.yaml", "cluster=local", "--trust", "tests.support.needing", "--profile", "nsys")


@pytest.mark.slow  # a launched run
def test_on_this_machine_the_run_itself_is_recorded(desk, nsys, capfd):
    assert main([*LOCAL, "--profile-seconds", "5-9"]) == 0
    (report,) = (desk / "runs/r/launch/profile").iterdir()
    assert {"--delay=5", "--duration=4"} <= set(report.read_text().splitlines()) and (desk / "runs/r/ran").exists()
    assert json.loads((desk / "runs/r/launch/launch.json").read_text())["words"]["profile"]["end_s"] == 9


def test_without_nsys_or_without_such_a_rank_nothing_is_run(desk, capfd, monkeypatch):
    assert main([*LOCAL]) == 2 and "nsys is not on the PATH" in capfd.readouterr().err
    words = ["submit", "r.yaml", "cluster=dgx_h100", *LOCAL[3:], "--profile-ranks", "0,1", "--dry-run"]
    assert main(words) == 0
    assert "PROBLEM profile       there is no rank 1 to record: the ranks are 0 to 0" in capfd.readouterr().out
    assert main([*LOCAL, "--profile-ranks", "1"]) == 2 and "recorded together" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [((None, "0", None), "add it, or leave them out"), (("nsys", "0,x", None), "rank numbers, such as 0,8"),
     (("nsys", "", None), "rank numbers"), (("nsys", None, "9-5"), "such as 120-180"),
     (("nsys", ",".join(map(str, range(65))), None), "up to 64"), (("nsys", "0;id", None), "got '0;id'")],
)  # fmt: skip
def test_what_cannot_be_recorded_is_refused_with_what_can(words, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_profile(*words)


def test_words_of_the_profile_are_kept_apart_and_in_order():
    assert parse_profile("nsys", "8,0,8", "1-2") == replace(ProfileSettings(), ranks=(0, 8), begin_s=1, end_s=2)
    assert parse_profile("nsys", None, None) == ProfileSettings() and parse_profile(None, None, None) is None
