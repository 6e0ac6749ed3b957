"""Tests that `vfm-launch submit --sweep` makes an array with a recipe and a run folder for each task."""

import json
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.plan.chain import share_out
from launcher.plan.recipe_info import Point, RecipeInfo, Step
from launcher.request.cluster import Slurm
from nemo_vfm.cli.main import main as nemo_vfm_main
from tests.launcher.render.test_quoting import HOSTILE
from tests.support import preloaded
from tests.support.repository import ROOT
from tests.support.slurm_jobs import run, small_job

CLUSTER = ("cluster=cpu_slurm", "cluster.cpus_per_node=2")
TRUST = ("--trust", "tests.support.needing", "--trust", "tests.support.spread")
NEEDY = "# Needs a file where it is told of one.\n_target_: tests.support.needing.Needs\n"
SWEEP = ("--sweep", "path=given.txt,null")


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe."""
    (desk / "needy.yaml").write_text(NEEDY)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return desk


def names(desk: Path) -> list[str]:
    """Of the runs of the sweep."""
    return json.loads((desk / "runs/needy-sweep/launch/launch.json").read_text())["runs"]


def ended(desk: Path, *rows: tuple[str, str]) -> None:
    """Lines of attempts.tsv: number of the task, kind."""
    with (desk / "runs/needy-sweep/launch/attempts.tsv").open("a") as file:
        for number, kind in rows:
            file.write(f"2026-01-01T00:00:00Z\t{number}\t0\t1\t{kind}\t-1\tn1\t\tno\t\n")


def test_each_task_of_the_array_has_its_own_recipe_and_run_folder(desk, queue, capsys):
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, "--dry-run", "--print-script", *SWEEP]) == 0
    shown = capsys.readouterr().out
    assert not (desk / "runs").exists()
    assert main(["submit", "needy.yaml", *TRUST, *SWEEP, *CLUSTER]) == 0  # what follows --sweep may say where
    assert queue.submitted(101).decode() == shown and "#SBATCH --array=0-1" in shown
    assert names(desk) == ["path=given.txt", "path=null"]
    for name in names(desk):
        text = (desk / f"runs/needy-sweep/launch/points/{name}/needy.yaml").read_text()
        assert f"path: {name.partition('=')[2]}" in text and f"run_dir: runs/needy-sweep/{name}" in text
    table = json.loads((desk / "runs/needy-sweep/sweep.json").read_text())
    assert [(row["name"], row["state"]) for row in table["points"]] == [(name, "waiting") for name in names(desk)]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.slow
def test_a_task_runs_its_recipe_in_its_folder_whatever_their_names(tmp_path, text):
    runs = tuple((tmp_path / f"{text}.yaml", tmp_path / f"{number} {text}") for number in range(2))
    job = small_job(tmp_path, array=2, task_runs=runs, task_words=((), (f"name={text}",)), words=("--allow=a b",))
    done = run(job, tmp_path / "fakes", SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_JOB_ID="7")
    recipe, folder = runs[1]
    assert done.steps[0][-6:] == ["nemo-vfm", "run", str(recipe), f"run_dir={folder}", "--allow=a b", f"name={text}"]
    assert (job.folder / "attempts.tsv").read_text().split("\t")[1] == "7_1"
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.slow
def test_what_only_the_user_can_say_is_said_in_each_job_and_again_for_a_rerun(desk, queue, capsys):
    trust = ("--trust", "tests.support.parts")
    (desk / "g.yaml").write_text("_target_: tests.support.parts.Guarded\n")
    assert main(["submit", "g.yaml", *CLUSTER, *trust, "strict=false", "run_dir=runs/a"]) == 0
    assert "run_dir=%s strict=false " % (desk / "runs/a") in queue.submitted(101).decode()
    assert nemo_vfm_main(["check", "runs/a/launch/g.yaml", *trust]) == 2
    assert nemo_vfm_main(["check", "runs/a/launch/g.yaml", *trust, "strict=false"]) == 0
    again = ["rerun", "runs/a", "run_dir=runs/b", *trust]
    capsys.readouterr()
    assert main(again) == 2 and main([*again, "strict=false", "seed=5"]) == 2
    said = capsys.readouterr().err
    assert "give it on the command line: strict=false" in said and "strict=false seed=5 would change its recipe" in said
    assert main([*again, "strict=false"]) == 0
    assert "run_dir=%s strict=false " % (desk / "runs/b") in queue.submitted(102).decode()
    assert main(["submit", "g.yaml", *CLUSTER, *trust, "--sweep", "strict=true,false"]) == 0
    lines = [line for line in queue.submitted(103).decode().splitlines() if "; own=(" in line]
    assert [line.partition("; own=")[2] for line in lines] == ["(strict=true) ;;", "(strict=false) ;;"]


def test_status_says_each_run_and_retry_takes_those_that_are_left(desk, queue, capsys):
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *SWEEP]) == 0
    ended(desk, ("101_0", "configuration"), ("101_1", "ok"))
    queue.now(101, "FAILED")
    capsys.readouterr()
    assert main(["status", "runs/needy-sweep"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 tasks are done" in said
    assert [line.split() for line in said.splitlines() if line.startswith("  path=")] == [
        ["path=given.txt", "configuration"], ["path=null", "done"],
    ]  # fmt: skip
    assert main(["status", "runs/needy-sweep", "--json"]) == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["configuration", "done"]
    assert main(["retry", "runs/needy-sweep"]) == 0
    assert "--array=0" in queue.asked("sbatch")[-1]


def test_a_sweep_goes_on_with_more_values_once_its_tasks_have_ended_and_lists_the_old_ones(desk, queue, capsys):
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, "--sweep", "path=null"]) == 0
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *SWEEP]) == 2
    assert "has jobs in the queue" in capsys.readouterr().err
    queue.now(101, "COMPLETED")
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *SWEEP]) == 0
    rows = json.loads((desk / "runs/needy-sweep/sweep.json").read_text())["points"]
    assert [row["name"] for row in rows] == ["path=null", "path=given.txt"]


def test_a_run_of_another_recipe_in_the_folder_of_one_is_told(desk, queue, capsys):
    folder = desk / "runs/needy-sweep/path=null"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("_target_: tests.support.needing.Needs\npath: other.txt\n")
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *SWEEP]) == 2
    assert "path=null holds a run of a different recipe" in capsys.readouterr().err
    assert queue.asked("sbatch") == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--sweep", "path=a,b", "--parts=2"], "--parts splits one run and --sweep makes several"),
        (["--sweep", "paht=a,b"], "did you mean path?"),
        (["--sweep", "path=a,a"], "a value is given twice"),
        (["--sweep", "cluster.time=1:00:00"], "got none"),
        (["--sweep", "path=a", "run_dir=held"], "held holds a run, not a sweep"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_and_nothing_is_written(desk, queue, capsys, more, said):
    (desk / "held").mkdir()
    (desk / "held/recipe.yaml").write_text(NEEDY)
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *more]) == 2
    assert said in capsys.readouterr().err
    assert not (desk / "runs").exists() and queue.asked("sbatch") == []


def test_what_any_run_of_a_sweep_needs_or_cannot_have_is_that_of_the_array():
    def point(name: str, **more: object) -> Point:
        one = Step(name="", kind="k", on_gpu=False, **({"ranks": 2, "degrees": {}} | more))
        return Point(name=name, changes=(), work=RecipeInfo(name="w", header="", steps=(one,)))

    plain, other = point("a", degrees={"shard": 2}), point("b", degrees={"tensor": 4, "shard": 1})
    for points in ((plain, other), (other, plain)):
        (share,) = share_out(points, Slurm(cpus_per_node=4), 2)
        assert (share.degrees, share.array, share.nodes, share.problem) == ({"shard": 2, "tensor": 4}, 2, 2, "")
    for points in ((plain, point("c", ranks=3)), (point("c", ranks=3), plain)):
        (share,) = share_out(points, Slurm(cpus_per_node=4), 2)
        assert "3 processes cannot be spread evenly over 2 nodes" in share.problem


def test_runs_of_different_sizes_are_told_apart_and_not_submitted(desk, queue, capsys):
    (desk / "long.yaml").write_text("_target_: tests.support.spread.Together\nnum: 1\nsteps: 4\n")
    assert main(["submit", "long.yaml", *CLUSTER, *TRUST, "--sweep", "num=1,2"]) == 2
    said = capsys.readouterr().err
    assert "num=1 takes 1 node of 1 task," in said and "num=2 takes 1 node of 2 tasks" in said


def test_a_launch_of_a_sweep_is_made_once_more_in_another_folder(desk, queue, capsys):
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, *SWEEP]) == 0
    assert main(["rerun", "runs/needy-sweep", "run_dir=runs/again", *TRUST]) == 0
    found = json.loads((desk / "runs/again/launch/launch.json").read_text())
    assert found["runs"] == names(desk) and found["jobs"][0]["array"] == 2
    for name in found["runs"]:
        text = (desk / f"runs/again/launch/points/{name}/needy.yaml").read_text()
        assert f"runs/again/{name}" in text and f"path: {name.partition('=')[2]}" in text
    assert len(json.loads((desk / "runs/again/sweep.json").read_text())["points"]) == 2
    capsys.readouterr()
    assert main(["diff", "runs/needy-sweep", "runs/again"]) == 0
    assert "are the same" in capsys.readouterr().out


def test_diff_compares_every_run_of_a_sweep(desk, queue, capsys):
    (desk / "other.yaml").write_text(NEEDY)
    for recipe, sweep, folder in (("needy.yaml", "a,null", "one"), ("other.yaml", "b,null", "two")):
        words = ["--no-paths", f"run_dir=runs/{folder}", "--sweep", f"path={sweep}"]
        assert main(["submit", recipe, *CLUSTER, *TRUST, *words]) == 0
    other = desk / "runs/two/launch/points/path=null/other.yaml"
    other.write_text(other.read_text().replace("path: null", "path: changed"))
    capsys.readouterr()
    assert main(["diff", "runs/one", "runs/two"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"path=null: path null -> changed", "path=a only in A", "path=b only in B"} <= set(said)


def test_tasks_of_a_sweep_are_asked_to_stop_as_early_as_the_slowest_checkpoint_of_its_runs_wants(desk, queue, capsys):
    (desk / "runs/needy-sweep/path=null/launch").mkdir(parents=True)
    text = "_target_: tests.support.needing.Needs\npath: null\nrun_dir: runs/needy-sweep/path=null\n"
    (desk / "runs/needy-sweep/path=null/recipe.yaml").write_text(text)
    (desk / "runs/needy-sweep/path=null/status.json").write_text('{"checkpoint_s": 400, "step_s": 0}')
    assert main(["submit", "needy.yaml", *CLUSTER, *TRUST, "--dry-run", "--print-script", *SWEEP]) == 0
    assert "--signal=USR1@1200" in capsys.readouterr().out


@pytest.mark.slow  # launched runs
def test_on_this_machine_its_runs_follow_one_another_and_the_table_says_how_they_ended(desk, capfd, monkeypatch):
    monkeypatch.setattr("launcher.local_run.subprocess", preloaded.COMMANDS)
    assert main(["submit", "needy.yaml", "cluster=local", *TRUST, *SWEEP]) == 2
    assert (desk / "runs/needy-sweep/path=null/ran").exists()
    (desk / "given.txt").touch()
    assert main(["submit", "needy.yaml", "cluster=local", *TRUST, *SWEEP]) == 0
    capfd.readouterr()
    assert main(["status", "runs/needy-sweep"]) == 0
    assert "2 of 2 runs are done" in capfd.readouterr().out
    assert nemo_vfm_main(["report", "runs/needy-sweep"]) == 0
    assert capfd.readouterr().out.count(" done ") == 2
    table = json.loads((desk / "runs/needy-sweep/sweep.json").read_text())
    assert [(row["state"], row["exit_status"]) for row in table["points"]] == [("done", 0)] * 2


@pytest.mark.slow  # plans two sweeps of a large model
def test_variables_are_those_of_all_runs_also_when_it_is_made_once_more(desk, queue):
    words = ["diffusion/dit_xl", "data.shards=/data", "cluster=dgx_h100", "--no-paths"]
    layouts = "parallel={replicate: 2},{shard: 2}"  # it is the second that wants more queues to the GPU
    texts = []
    for turn in (["submit", *words, "run_dir=runs/a", "--sweep", layouts], ["rerun", "runs/a", "run_dir=runs/b"]):
        assert main(turn) == 0
        texts.append(queue.submitted(101 + len(texts)).decode())
    assert [text.count("CUDA_DEVICE_MAX_CONNECTIONS=8") for text in texts] == [1, 1]


def test_every_variable_that_any_run_reads_is_looked_for_when_a_task_begins(desk, queue, monkeypatch):
    for name in ("FIRST_PATH", "SECOND_PATH"):
        monkeypatch.setenv(name, "given.txt")
    words = ["submit", "needy.yaml", *CLUSTER, *TRUST, "--sweep", "path=${env:FIRST_PATH},${env:SECOND_PATH}"]
    assert main(words) == 0
    script = queue.submitted(101).decode()
    assert "${FIRST_PATH:+set}" in script and "${SECOND_PATH:+set}" in script
