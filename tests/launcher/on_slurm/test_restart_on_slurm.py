"""Tests that jobs which a real Slurm may not requeue resume in other jobs, and who waits for them.

The only fake is `scontrol`, which refuses what a site may forbid and otherwise calls the real one.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.render.script import script
from launcher.request.cluster import Slurm as Cluster
from launcher.slurm import slurm
from tests.launcher.on_slurm.test_chain_on_slurm import CLUSTER, TRUST, attempts, numbers
from tests.launcher.on_slurm.test_slurm_ends import of_bash
from tests.support.repository import ROOT
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import small_job

CPU = Cluster(exclusive=False)
CHAIN = """\
# The first of three steps is killed once.
_target_: nemo_vfm.workflow.Workflow
steps:
  first: {_target_: tests.support.needing.DiesFirst}
  second: {_target_: tests.support.needing.Needs}
  third: {_target_: tests.support.needing.Needs}
"""


@pytest.fixture
def forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Words of scontrol that are refused to whatever is submitted from here."""

    def refuse(*words: str) -> None:
        (tmp_path / "bin").mkdir()
        real = shutil.which("scontrol")
        (tmp_path / "bin/scontrol").write_text(
            f'#!/bin/bash\n[[ " {" ".join(words)} " == *" $1 "* ]] || exec {real} "$@"\n'
            'echo "scontrol: error: Access/permission denied" >&2; exit 1\n'
        )
        (tmp_path / "bin/scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")

    return refuse


def line_of_jobs(run_dir: Path, first: str) -> list[str]:
    """A number and those that went on."""
    later = dict(line.split("\t") for line in (run_dir / "launch/resubmitted.tsv").read_text().splitlines())
    found = [first]
    while found[-1] in later:
        found.append(later[found[-1]])
    return found


def until_begun(cluster: Slurm, run_dir: Path, first: str, count: int) -> list[str]:
    """Wait until so many jobs have gone on with the work of one."""
    file = run_dir / "launch/resubmitted.tsv"
    cluster.until(lambda: file.is_file() and len(line_of_jobs(run_dir, first)) > count, f"{count} jobs more", 120)
    return line_of_jobs(run_dir, first)


def test_a_job_that_may_not_be_requeued_goes_on_as_another_with_the_same_log(real_slurm: Slurm, tmp_path, forbid):
    forbid("requeue")
    said = "printf '%s\\n' 'a boy fallen off the bus' 'GPU has fallen off the bus' 'skipped: CUDA out of memory'"
    once = f"[[ -e {tmp_path}/once ]] || {{ touch {tmp_path}/once; {said}; kill -9 $$; }}; env > {tmp_path}/seen"
    job = of_bash(real_slurm, tmp_path / "run", once)
    first, second = until_begun(real_slurm, tmp_path / "run", job.number, 1)
    assert real_slurm.ended(second)["JobState"] == "COMPLETED", job.story()
    assert job.attempts("job", "restart", "kind") == [(first, "0", "lost_rank"), (second, "1", "ok")]
    assert real_slurm.job(second)["ExcNodeList"] == "(null)"
    assert job.log().count("vfm-launch: ") == 3 and "Access/permission denied" in job.log()
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert seen["SLURM_JOB_ID"] == second and "SLURM_RESTART_COUNT" not in seen


def test_a_job_whose_every_attempt_saves_further_outlives_five_time_limits(real_slurm: Slurm, tmp_path: Path):
    folder = tmp_path / "run/checkpoints"
    text = (f'mkdir -p {folder}; n=$(ls {folder} | wc -l); touch {folder}/step-$(( 10000000 + n )).ckpt; '
            "exit $(( n < 5 ? 75 : 0 ))")  # fmt: skip
    job = of_bash(real_slurm, tmp_path / "run", text, where=Cluster(exclusive=False, restart="resubmit", time="5"))
    jobs = until_begun(real_slurm, tmp_path / "run", job.number, 5)
    assert real_slurm.ended(jobs[-1])["JobState"] == "COMPLETED", job.story()
    expected = [(str(10_000_000 + n), "time_limit" if n < 5 else "ok", "yes") for n in range(6)]
    assert job.attempts("step", "kind", "moved") == expected


def test_what_gets_no_further_is_submitted_three_times_and_not_for_ever(real_slurm: Slurm, tmp_path, forbid):
    forbid("requeue")
    job = of_bash(real_slurm, tmp_path / "run", "kill -9 $$")
    jobs = until_begun(real_slurm, tmp_path / "run", job.number, 2)
    assert real_slurm.ended(jobs[-1])["JobState"] == "FAILED"
    assert job.attempts("job", "restart", "kind") == [(jobs[n], str(n), "lost_rank") for n in range(3)]
    assert "not restarted: 3 attempts" in job.log() and len(line_of_jobs(tmp_path / "run", jobs[0])) == 3


@pytest.mark.parametrize("refused", ["requeue", "requeue update"])
def test_a_chain_waits_for_the_job_that_goes_on_and_every_verb_follows_it(slurm_here, desk, forbid, refused, capsys):
    forbid(*refused.split())
    (desk / "wf.yaml").write_text(CHAIN)
    assert main(["submit", "wf.yaml", *CLUSTER, *TRUST]) == 0
    submitted = {name: numbers[0] for name, numbers in numbers("runs/wf").items()}
    _, first = until_begun(slurm_here, desk / "runs/wf", submitted["first"], 1)
    capsys.readouterr()
    assert main(["logs", "runs/wf", "-f"]) == 0
    said = capsys.readouterr().out
    assert said.count("vfm-launch: ok") == 3 and "vfm-launch: lost_rank" in said
    third = (line_of_jobs(desk / "runs/wf", submitted["third"]))[-1]
    assert (third == submitted["third"]) == (refused == "requeue")
    assert slurm_here.ended(third)["JobState"] == "COMPLETED"
    assert [kind for _, kind in attempts("runs/wf")] == ["lost_rank", "ok", "ok", "ok"]
    assert main(["status", "runs/wf", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["jobs"]
    assert [one["done"] for one in found] == [True] * 3 and found[0]["number"] == first
    assert main(["retry", "runs/wf"]) == 0 and "is complete" in capsys.readouterr().out


def test_cancel_ends_the_job_that_went_on_and_retry_begins_anew(slurm_here, desk, forbid, capsys):
    forbid("requeue")
    (desk / "wf.yaml").write_text(CHAIN.replace("DiesFirst}", "DiesFirst, sleeps_at: 2}"))
    assert main(["submit", "wf.yaml", *CLUSTER, *TRUST, "cluster.restart=resubmit"]) == 0
    (begun,) = numbers("runs/wf")["first"]
    second = until_begun(slurm_here, desk / "runs/wf", begun, 1)[1]
    tries = desk / "runs/wf/first/tries"
    slurm_here.until(lambda: tries.read_text() == "xx", "second try", 60)
    assert main(["cancel", "runs/wf"]) == 0
    capsys.readouterr()
    assert {slurm_here.until_state(number, "CANCELLED", "FAILED")["JobState"] for number in (begun, second)}
    assert main(["status", "runs/wf", "--json"]) == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)["jobs"]] == ["cancelled"] * 3
    assert line_of_jobs(desk / "runs/wf", begun) == [begun, second]
    assert main(["retry", "runs/wf"]) == 0
    last = numbers("runs/wf")["third"][-1]
    slurm_here.until(lambda: slurm_here.job(last)["JobState"] == "COMPLETED", "the chain", 120)


def test_what_waits_for_an_array_waits_for_the_tasks_that_go_on_elsewhere(slurm_here, tmp_path, forbid):
    forbid("requeue")
    once = f'file={tmp_path}/$SLURM_ARRAY_TASK_ID; [[ $file == */0 || -e $file ]] || {{ touch "$file"; kill -9 $$; }}'
    array = of_bash(slurm_here, tmp_path / "run", f"sleep 1; {once}", array=3)
    join = small_job(tmp_path / "join", command=("bash", "-c", f"cp {tmp_path}/run/launch/attempts.tsv {tmp_path}/at"))
    join = small_job(tmp_path / "join", command=join.command, cpus_per_task=1, cluster=CPU)
    (join.folder / "logs").mkdir(parents=True)
    (join.folder / "job.sh").write_text(script(join))
    behind = slurm.submit(join.folder / "job.sh", ROOT, after=[array.number])
    assert slurm_here.ended(behind)["JobState"] == "COMPLETED", array.cluster.said()
    kinds = [line.split("\t")[4] for line in (tmp_path / "at").read_text().splitlines()]
    assert sorted(kinds) == ["lost_rank", "lost_rank", "ok", "ok", "ok"]
