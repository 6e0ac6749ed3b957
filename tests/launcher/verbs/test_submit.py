"""Tests what is submitted, kept, refused, said and resumed, with a fake queue."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from launcher import python_api
from launcher.cli import main
from launcher.python_api import Submitted
from launcher.slurm import slurm
from launcher.state import logs
from launcher.state.launch_folder import read, submission_lock
from launcher.state.logs import Tail
from nemo_vfm.core.errors import UserError

SHAPES = ("submit", "synthetic/shapes", "--overlay=smoke", "cluster=cpu_slurm", "run_dir=runs/a")
CHAIN = ("submit", "quickstart", "--overlay=smoke", "cluster=cpu_slurm", "run_dir=runs/q")


@pytest.fixture
def films(tmp_path: Path) -> list[str]:
    (tmp_path / "films").mkdir()
    (tmp_path / "films/one.mp4").touch()
    return ["submit", "curation/clips", "cluster=cpu_slurm", f"source.path={tmp_path}/films", "run_dir=runs/a"]


def launch_json(run: str = "runs/a") -> dict:
    return json.loads(Path(run, "launch/launch.json").read_text())


def ended(run: str, *rows: tuple[object, str, str]) -> None:
    """Lines of attempts.tsv: number of the job, kind, sentence."""
    with Path(run, "launch/attempts.tsv").open("a") as file:
        for number, kind, sentence in rows:
            file.write(f"2026-01-01T00:00:00Z\t{number}\t0\t1\t{kind}\t-1\tn1\t{sentence}\tno\t\n")


def test_what_is_submitted_is_byte_for_byte_what_the_dry_run_showed(queue, capsys):
    assert main([*SHAPES, "--dry-run", "--print-script"]) == 0
    shown = capsys.readouterr().out
    assert queue.asked("sbatch") == []
    assert main([*SHAPES]) == 0
    assert queue.submitted(101) == shown.encode() == Path("runs/a/launch/job.sh").read_bytes()
    assert "job 101" in capsys.readouterr().out


def test_the_folder_holds_recipe_script_packages_and_what_was_asked_for_its_owner_alone(queue):
    assert main([*SHAPES]) == 0
    folder = Path("runs/a/launch")
    found = launch_json()
    assert found["schema"] == "nemo_vfm.launch/1" and found["jobs"][0]["slurm"] == ["101"]
    assert found["id"] in (folder / "job.sh").read_text()
    assert "torch==" in (folder / "packages.txt").read_text()
    kept = (folder / "shapes.yaml").read_text()  # its name and first line are what the report shows
    assert "run_dir: runs/a" in kept and re.match(r"# [A-Z].+\n_target_: ", kept)
    assert folder.stat().st_mode & 0o077 == 0 and (folder / "job.sh").stat().st_mode & 0o777 == 0o700


def test_the_working_tree_is_kept_as_it_was_and_is_part_of_the_run(queue):
    subprocess.run(["git", "init", "-q"], check=True)
    Path("mine.py").write_text("x = 1\n")
    assert main([*SHAPES, "--trust", "mine"]) == 0
    Path("mine.py").write_text("x = 2\n")
    assert Path("runs/a/launch/code/mine.py").read_text() == "x = 1\n"
    assert "launch/code" in Path("runs/a/launch/job.sh").read_text()
    first = launch_json()["id"]
    queue.now(101, "COMPLETED")
    assert main([*SHAPES]) == 0
    assert Path("runs/a/launch/code/mine.py").read_text() == "x = 2\n" and launch_json()["id"] != first
    assert launch_json()["earlier"][0]["id"] == first


def test_a_surrounding_job_leaves_nothing_in_the_environment_of_what_is_submitted(queue, monkeypatch):
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("MY_OWN", "kept")
    assert main([*SHAPES]) == 0
    seen = queue.environment(101)
    assert "MY_OWN" in seen
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "WORLD_SIZE"} & set(seen)


def test_the_same_again_is_refused_while_it_waits_or_runs_and_goes_on_once_it_has_ended(queue, capsys):
    assert main([*SHAPES]) == 0
    assert main([*SHAPES]) == 2
    assert "has jobs in the queue: 101 (job) is PENDING" in capsys.readouterr().err
    queue.now(101, "FAILED")
    assert main([*SHAPES]) == 0
    assert launch_json()["jobs"][0]["slurm"] == ["101", "102"]
    assert launch_json()["earlier"] == []


def test_a_folder_of_another_recipe_is_refused_with_what_differs_and_allow_goes_on(queue, capsys):
    assert main([*SHAPES]) == 0
    queue.forgets()
    Path("runs/a/recipe.yaml").write_bytes(Path("runs/a/launch/shapes.yaml").read_bytes())  # as the run does first
    assert main([*SHAPES, "seed=3"]) == 2
    assert "seed: 0 there, 3 now" in capsys.readouterr().err
    assert main([*SHAPES, "seed=3", "--allow", "seed"]) == 0
    assert "--allow=seed" in Path("runs/a/launch/job.sh").read_text()


def test_a_folder_with_somebody_elses_files_is_refused(queue, capsys):
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/thesis.tex").write_text("")
    assert main([*SHAPES]) == 2
    assert "holds thesis.tex and is not a run folder" in capsys.readouterr().err


def test_of_two_who_submit_in_one_folder_at_the_same_moment_one_is_refused(queue, capsys):
    with submission_lock(Path("runs/a").absolute()):
        assert main([*SHAPES]) == 2
    assert "another process is submitting" in capsys.readouterr().err
    assert queue.asked("sbatch") == [] and main([*SHAPES]) == 0


def test_what_sbatch_says_is_passed_on(queue, capsys):
    queue.refuse("sbatch", "sbatch: error: Batch job submission failed: Invalid account")
    assert main([*SHAPES]) == 2
    assert "sbatch refused: Batch job submission failed: Invalid account" in capsys.readouterr().err


def test_a_chain_waits_step_by_step_and_none_of_it_stays_where_one_is_refused(queue, capsys):
    assert main([*CHAIN]) == 0
    calls = queue.asked("sbatch")
    assert [word for call in calls for word in call if word.startswith("--dependency")] == [
        f"--dependency=afterok:{number}" for number in range(101, 107)
    ]
    assert main(["cancel", "runs/q"]) == 0
    assert queue.asked("scancel") == [[str(number) for number in range(107, 100, -1)]]


def test_of_a_chain_whose_second_job_is_refused_the_first_is_taken_back(queue, monkeypatch, capsys):
    from nemo_vfm.core.errors import UserError

    real, calls = slurm.submit, []

    def second_fails(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise UserError("sbatch refused: QOSMaxSubmitJobPerUserLimit")
        return real(*args, **kwargs)

    monkeypatch.setattr(slurm, "submit", second_fails)
    assert main([*CHAIN]) == 2
    assert "QOSMaxSubmit" in capsys.readouterr().err
    assert queue.asked("scancel") == [["101"]]


def test_retry_submits_what_failed_and_what_waited_for_it_from_the_same_scripts(queue, capsys):
    assert main([*CHAIN]) == 0
    for number in (101, 102):
        queue.now(number, "COMPLETED")
    queue.now(103, "FAILED")
    for number in range(104, 108):
        queue.now(number, "CANCELLED", "DependencyNeverSatisfied")
    ended("runs/q", (101, "ok", ""), (102, "ok", ""), (103, "configuration", "no such folder"))
    capsys.readouterr()
    assert main(["status", "runs/q"]) == 0
    said = capsys.readouterr().out
    assert "configuration" in said and "no such folder" in said and "the job before it failed" in said
    assert main(["retry", "runs/q"]) == 0
    assert [Path(call[-1]).name for call in queue.asked("sbatch")[7:]] == [
        "encode.sh", "train.sh", "sample.sh", "baseline.sh", "evaluate.sh"
    ]  # fmt: skip
    assert queue.submitted(108) == queue.submitted(103)
    assert not any(word.startswith("--dependency") for word in queue.asked("sbatch")[7])
    assert main(["retry", "runs/q"]) == 2  # it is in the queue now


def test_what_is_cancelled_is_listed_as_such_and_goes_on_with_retry(queue, capsys):
    assert main([*SHAPES]) == 0
    queue.now(101, "RUNNING")
    assert main(["cancel", "runs/a"]) == 0
    queue.now(101, "COMPLETING")
    capsys.readouterr()
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "cancelled" in said and "waiting" not in said
    queue.now(101, "CANCELLED")
    assert main(["retry", "runs/a"]) == 0


def test_retry_refuses_a_script_that_the_launch_did_not_write(queue, capsys):
    assert main([*SHAPES]) == 0
    queue.now(101, "FAILED")
    with Path("runs/a/launch/job.sh").open("a") as file:
        file.write("echo more\n")
    assert main(["retry", "runs/a"]) == 2
    assert "job.sh has changed since the launch wrote it" in capsys.readouterr().err
    assert len(queue.asked("sbatch")) == 1


def test_a_number_typed_for_the_environment_reaches_the_script(queue, capsys):
    assert main([*SHAPES, "cluster.environment.NCCL_NVLS_ENABLE=1", "--dry-run", "--print-script"]) == 0
    assert "export NCCL_NVLS_ENABLE=1 " in capsys.readouterr().out


def test_a_trusted_package_of_a_src_layout_is_found_in_the_snapshot(queue, capsys):
    subprocess.run(["git", "init", "-q"], check=True)
    Path("src/mine_in_src").mkdir(parents=True)
    Path("src/mine_in_src/__init__.py").write_text(
        "class Mine:\n    def run(self, run: 'nemo_vfm.core.types.job.Run') -> 'nemo_vfm.core.types.job.Outcome': ...\n"
        "import nemo_vfm.core.types.job\n"
    )
    Path("mine.yaml").write_text("_target_: mine_in_src.Mine\n")
    assert (
        main(["submit", "mine.yaml", "cluster=cpu_slurm", "--trust", "mine_in_src", "--dry-run", "--print-script"]) == 0
    )
    code = Path.cwd() / "runs/mine/launch/code"
    assert f"export PYTHONPATH={code}:{code}/src$" in capsys.readouterr().out


def test_retry_of_what_is_done_submits_nothing(queue, capsys):
    assert main([*SHAPES]) == 0
    queue.forgets()
    ended("runs/a", (101, "ok", ""))
    assert main(["retry", "runs/a"]) == 0
    assert "is complete" in capsys.readouterr().out and len(queue.asked("sbatch")) == 1


def test_work_that_can_be_shared_out_is_an_array_for_each_round_and_then_one_job_for_the_rest(queue, films):
    assert main([*films, "--parts", "8"]) == 0
    assert [Path(call[-1]).name for call in queue.asked("sbatch")] == ["parts-0.sh", "parts-1.sh", "job.sh"]
    script = queue.submitted(102).decode()
    assert "--array=0-7" in script and "3) own=(--part 3/8@1)" in script
    assert "--dependency=afterok:101" in queue.asked("sbatch")[1]
    assert "--part " not in queue.submitted(103).decode()


def test_tasks_of_another_number_of_parts_are_not_taken_for_done(queue, films):
    assert main([*films, "--parts", "4"]) == 0
    queue.forgets()
    ended("runs/a", *((f"101_{task}", "ok", "") for task in range(4)))
    assert main([*films, "--parts", "2"]) == 0
    queue.forgets()
    assert main(["retry", "runs/a"]) == 0
    again = queue.asked("sbatch")[6]
    assert Path(again[-1]).name == "parts-0.sh" and "--array=0,1" in again, "half of the films is no quarter of them"


def test_retry_of_an_array_submits_the_tasks_that_failed_and_no_other(queue, films, capsys):
    assert main([*films, "--parts", "8", "cluster.max_at_once=4"]) == 0
    queue.forgets()
    for task in range(8):
        ended("runs/a", (f"101_{task}", "unknown" if task in (2, 5) else "ok", "a bad day"))
    capsys.readouterr()
    assert main(["status", "runs/a"]) == 0
    assert "6 of 8 tasks are done; a bad day" in capsys.readouterr().out
    assert main(["retry", "runs/a"]) == 0
    again = queue.asked("sbatch")[3:]
    assert [[word for word in call if word.startswith("--array")] for call in again] == [
        ["--array=2,5%4"], ["--array=0,1,2,3,4,5,6,7%4"], []
    ]  # fmt: skip
    assert [Path(call[-1]).name for call in again] == ["parts-0.sh", "parts-1.sh", "job.sh"]
    queue.forgets()
    ended("runs/a", *((f"104_{task}", "ok", "") for task in (2, 5)))
    assert main(["retry", "runs/a"]) == 0
    assert [Path(call[-1]).name for call in queue.asked("sbatch")[6:]] == ["parts-1.sh", "job.sh"]


def test_rerun_takes_recipe_cluster_and_code_as_they_were_into_another_folder(queue, capsys):
    subprocess.run(["git", "init", "-q"], check=True)
    Path("mine.py").write_text("x = 1\n")
    assert main([*SHAPES, "seed=5", "cluster.time=1:00:00"]) == 0
    Path("mine.py").write_text("x = 2\n")
    assert main(["rerun", "runs/a", "run_dir=runs/a"]) == 2
    assert main(["rerun", "runs/a", "run_dir=runs/b"]) == 0
    assert Path("runs/b/launch/code/mine.py").read_text() == "x = 1\n"
    text = Path("runs/b/launch/job.sh").read_text()
    assert "--time=1:00:00" in text and "runs/b" in text and "runs/a" not in text
    capsys.readouterr()
    assert main(["diff", "runs/a", "runs/b"]) == 0
    assert capsys.readouterr().out == "recipe, cluster, size, code and packages are the same\n"


def test_rerun_keeps_every_word_of_a_launch_but_those_of_its_folder_and_recipe(queue):
    options = ["--profile=nsys", "--profile-ranks=0", "--profile-seconds=5-9", "--rank-timeout=77", "--allow=seed"]
    assert main([*SHAPES, "seed=5", *options, "--no-code", "--no-paths"]) == 0
    assert main(["rerun", "runs/a", "run_dir=runs/b"]) == 0
    words = [json.loads(Path(f"runs/{name}/launch/launch.json").read_text())["words"] for name in "ab"]
    own = ("recipe", "changes", "overlays", "conf", "cluster_changes")  # the composed recipe and cluster hold them
    assert words[0] | dict.fromkeys(own) == words[1] | dict.fromkeys(own)
    assert words[1]["profile"]["end_s"] == 9 and "nsys" in Path("runs/b/launch/job.sh").read_text()


def test_relative_paths_begin_where_it_was_submitted_whoever_goes_on_from_elsewhere(queue, tmp_path, monkeypatch):
    submit, folders = slurm.submit, []
    monkeypatch.setattr(slurm, "submit", lambda script, workdir, **more: folders.append(workdir) or submit(
        script, workdir, **more))  # fmt: skip
    desk = Path.cwd()
    assert main([*SHAPES]) == 0
    queue.now(101, "FAILED")
    monkeypatch.chdir(tmp_path)
    assert main(["retry", str(desk / "runs/a")]) == 0
    assert main(["rerun", str(desk / "runs/a"), f"run_dir={desk}/runs/b"]) == 0
    assert folders == [desk] * 3


def test_rerun_asks_again_for_the_hosts_that_a_launch_could_reach(queue, capsys):
    assert main([*SHAPES, "--allow-host", "api.example.com=SOME_KEY"]) == 0
    capsys.readouterr()
    assert main(["rerun", "runs/a", "run_dir=runs/b", "--allow-host", "other.example.com"]) == 2
    assert "--allow-host api.example.com=SOME_KEY" in capsys.readouterr().err and not Path("runs/b").exists()
    assert main(["rerun", "runs/a", "run_dir=runs/b", "--allow-host", "api.example.com=SOME_KEY"]) == 0
    assert "api.example.com=SOME_KEY" in Path("runs/b/launch/job.sh").read_text()


def test_diff_names_what_changed_of_recipe_cluster_and_code(queue, capsys):
    subprocess.run(["git", "init", "-q"], check=True)
    Path("mine.py").write_text("x = 1\n")
    assert main([*SHAPES]) == 0
    Path("mine.py").write_text("x = 2\n")
    Path("new.py").write_text("")
    assert main([*SHAPES, "run_dir=runs/b", "seed=1", "cluster.qos=short"]) == 0
    capsys.readouterr()
    assert main(["diff", "runs/a", "runs/b"]) == 0
    said = capsys.readouterr().out
    for line in ("seed         0 -> 1", "cluster.qos  nothing -> short", "mine.py  changed", "new.py   only in B"):
        assert line in said or " ".join(line.split()) in " ".join(said.split())


def test_launches_are_listed_the_latest_first_with_what_is_done_of_each(queue, capsys):
    for name, created, kind in (("a", "2026-01-02", "ok"), ("b", "2026-01-03", "unknown"), ("c", "2026-01-01", "ok")):
        assert main([*SHAPES, f"run_dir=runs/{name}"]) == 0
        file = Path(f"runs/{name}/launch/launch.json")
        file.write_text(json.dumps(launch_json(f"runs/{name}") | {"created": f"{created}T00:00:00+00:00"}))
        ended(f"runs/{name}", (launch_json(f"runs/{name}")["jobs"][0]["slurm"][-1], kind, "how"))
    queue.forgets()
    capsys.readouterr()
    assert main(["list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [
        ("runs/b", "0/1", "unknown"), ("runs/a", "1/1", "done"), ("runs/c", "1/1", "done")
    ]  # fmt: skip


def test_diff_names_every_option_that_the_jobs_were_given(queue, films, capsys):
    more = ["--allow=pace", "--allow-host=api.example.com", "--rank-timeout=70", "--rank-silence=80", "--profile=nsys"]
    assert main([*films, "run_dir=runs/b", "--parts=4", "--no-paths", "--no-code", *more]) == 0
    assert main([*films, "--parts=8"]) == 0
    capsys.readouterr()
    assert main(["diff", "runs/a", "runs/b"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "parts-0.array 8 -> 4" in said and "profile" in said
    for name, value in (word.removeprefix("--").split("=") for word in more[:-1]):
        assert re.search(rf"words.{name.replace('-', '_')} \S+ -> \S*{value}", said), said


def test_logs_show_the_ends_of_the_latest_numbers_without_what_steers_a_terminal(queue, capsys):
    assert main([*SHAPES]) == 0
    capsys.readouterr()
    assert main(["logs", "runs/a"]) == 0
    assert "has no log yet" in capsys.readouterr().out
    Path("runs/a/launch/logs/a-101.out").write_text("".join(f"line {n}\n" for n in range(100)) + "\x1b[2Jred\n")
    assert main(["logs", "runs/a", "--lines", "3"]) == 0
    assert capsys.readouterr().out == "line 98\nline 99\n?[2Jred\n"
    queue.now(101, "COMPLETED")
    assert main(["logs", "-f", "runs/a", "--lines", "1"]) == 0
    assert capsys.readouterr().out == "?[2Jred\n"


class Clock:
    """A `time` that passes by sleeping alone, and does something when it reaches a moment.

    Args:
        at_s: the moment.
        then: what happens.
    """

    def __init__(self, at_s=float("inf"), then=None):
        self.now_s, self.at_s, self.then = 0.0, at_s, then

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        if self.now_s >= self.at_s:
            self.then()


def test_a_wait_takes_all_its_time_and_no_more(queue, monkeypatch):
    assert main([*SHAPES]) == 0
    launch = Submitted(Path("runs/a"))
    monkeypatch.setattr(python_api, "time", clock := Clock())
    with pytest.raises(TimeoutError, match="still queued or running after 10 s"):
        launch.wait(timeout_s=10)
    assert clock.now_s == 10
    monkeypatch.setattr(python_api, "time", clock := Clock(10, lambda: queue.now(101, "CANCELLED")))
    assert [one.state for one in launch.wait(timeout_s=20)] == ["cancelled"] and clock.now_s == 15


def test_who_waits_for_a_job_outlives_a_controller_that_refuses_for_some_minutes_and_not_for_ever(queue, monkeypatch):
    def answer() -> None:
        (queue.folder / "squeue.refuses").unlink(missing_ok=True)
        queue.now(101, "CANCELLED")

    assert main([*SHAPES]) == 0
    kept = read(Path("runs/a"))
    for module, wait in ((python_api, Submitted(kept.run_dir).wait), (logs, lambda: Tail(kept, None).follow())):
        queue.now(101, "RUNNING")
        queue.refuse("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
        monkeypatch.setattr(module, "time", Clock(540, answer))
        wait()
        queue.refuse("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
        monkeypatch.setattr(module, "time", clock := Clock())
        with pytest.raises(UserError, match="Unable to contact"):
            wait()
        assert 600 <= clock.now_s < 630
    with pytest.raises(UserError, match="Unable to contact"):
        Submitted(kept.run_dir).wait(timeout_s=0)


@pytest.mark.parametrize(("typed", "exported"), [
    ("=", "export A=''"), ("=1_000", "export A=1_000"), ("=12.10", "export A=12.10"), ("=007", "export A=007"),
    ("=1e400", "export A=1e400"), ("=-.inf", "export A=-.inf"), ("=true", "export A=true"),
    ("=null", None), ("=~", None), ("='x y'", "export A='x y'"),
])  # fmt: skip
def test_a_variable_that_is_typed_arrives_letter_by_letter(queue, capsys, typed, exported):
    Path("conf/cluster").mkdir(parents=True)
    Path("conf/cluster/mine.yaml").write_text(
        "_target_: launcher.request.cluster.Slurm\ngpus_per_node: 0\ncpus_per_node: 4\n"
        "environment: {OMP_NUM_THREADS: +1_0, NCCL_BUFFSIZE: 12.10,\n  A: &a 5, MKL_DEBUG_CPU_TYPE: *a}\n"
    )
    words = (
        "submit",
        "synthetic/shapes",
        "cluster=mine",
        f"cluster.environment.A{typed}",
        "--dry-run",
        "--print-script",
    )
    assert main(words) == 0
    lines = [line.partition("  #")[0].rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("export A=")] == ([] if exported is None else [exported])
    assert {"export OMP_NUM_THREADS=+1_0", "export NCCL_BUFFSIZE=12.10", "export MKL_DEBUG_CPU_TYPE=5"} <= {*lines}


def test_variables_that_are_typed_together_are_texts_too(queue, capsys):
    assert (
        main([*SHAPES, "cluster.environment={A: 1_000, B: 12.10, C: true, D: ''}", "--dry-run", "--print-script"]) == 0
    )
    said = capsys.readouterr().out
    assert all(f"export {line}" in said for line in ("A=1_000 ", "B=12.10 ", "C=true ", "D='' "))


def test_a_folder_whose_log_could_not_be_opened_is_refused_with_the_limit(queue, capsys):
    for length, status in ((229, 0), (230, 2)):
        assert main([*SHAPES[:-1], f"run_dir=runs/{'x' * length}"]) == status
    said = capsys.readouterr().err
    assert "230 bytes" in said and "(at most 229); shorten the last folder of run_dir" in said
    assert len(queue.asked("sbatch")) == 1


def test_a_key_of_the_environment_is_in_no_file_and_in_nothing_that_is_said(queue, films, monkeypatch, capfd):
    canary = "canary-4e1d77b0"
    monkeypatch.setenv("WANDB_API_KEY", canary)
    monkeypatch.setenv("FILMS_LIE_HERE", f"films/{canary}")
    Path("films", canary, "one").mkdir(parents=True)
    words = [*films[:3], "source.path=${env:FILMS_LIE_HERE}", "run_dir=runs/a"]
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0
    for more in (
        ["status", "runs/a"],
        ["status", "runs/a", "--json"],
        ["list"],
        ["logs", "runs/a"],
        ["retry", "runs/a"],
    ):
        main(more)
    said = capfd.readouterr()
    assert canary not in said.out + said.err
    files = [path for path in Path("runs").rglob("*") if path.is_file()]
    assert len(files) > 4 and not [path for path in files if canary.encode() in path.read_bytes()]
    assert "FILMS_LIE_HERE" in Path("runs/a/launch/job.sh").read_text()


def test_where_slurm_does_not_answer_status_says_so_and_what_the_folder_says(queue, capsys):
    assert main([*SHAPES]) == 0
    ended("runs/a", (101, "lost_rank", "rank 1 of 2 was killed"))
    queue.refuse("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    capsys.readouterr()
    assert main(["status", "runs/a"]) == 0
    said = capsys.readouterr().out
    assert "Slurm does not answer" in said and "rank 1 of 2 was killed" in said
    assert main(["list"]) == 0
    assert main(["submit", *SHAPES[1:]]) == 2  # nobody knows whether it still runs


def test_a_dry_run_shows_what_it_can_where_slurm_does_not_answer(queue, capsys):
    queue.refuse("sinfo", "slurm_load_partitions: Unable to contact slurm controller")
    assert main([*SHAPES, "--dry-run", "--print-script"]) == 0
    said = capsys.readouterr()
    assert "PROBLEM" not in said.err.replace("no PROBLEM", "") and "give cluster.cpus_per_node=N" in said.err
    assert said.out.startswith("#!/bin/bash")
    assert main([*SHAPES]) == 2 and "PROBLEM cluster " in capsys.readouterr().err


def test_a_folder_that_was_not_launched_says_so(queue, capsys):
    Path("runs").mkdir()
    for words in (["status", "runs"], ["retry", "runs"], ["diff", "runs", "runs"]):
        assert main(words) == 2
        assert "was not launched" in capsys.readouterr().err
