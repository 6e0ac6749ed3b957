"""Tests restarts: what Slurm is asked, how attempts are counted, and what people are told."""

from pathlib import Path

import pytest

from launcher.render.job import SlurmJob
from launcher.render.script import script
from launcher.request.cluster import Slurm
from launcher.slurm.job_status import progress, run_states, states
from launcher.state.launch_folder import line_of, successors
from nemo_vfm.core.storage import checkpoint_names
from tests.launcher.state.test_job_status import attempt, in_queue, job, kept
from tests.support.slurm_jobs import Done, run, small_job

SAVED = "75"  # the status of a run that was asked to end, and has saved


def refused(one: SlurmJob, fakes: Path, what: str = "requeue", **more: str) -> tuple[Done, list[str]]:
    """A job whose requeue Slurm refuses: what it did, and the words that sbatch got."""
    done = run(one, fakes, FAKE_STATUS=SAVED, FAKE_REFUSES=what, **more)
    file = fakes / "asked"
    return done, file.read_text().split("\0")[:-1] if file.exists() else []


def test_where_a_requeue_is_refused_the_same_script_is_submitted_again_behind_the_job(tmp_path: Path):
    one = small_job(tmp_path / "50%j a'b")
    done, words = refused(one, tmp_path / "fakes", SLURM_CONF="/etc/s.conf", SLURM_RESTART_COUNT="3", SBATCH_QOS="q")
    assert done.status == 75 and "resubmitted as job 8" in done.said
    log = str(one.folder / "logs/log").replace("%", "%%")
    assert words == ["--parsable", "--dependency=afterany:7", f"--output={log}", str(one.folder / "job.sh")]
    assert (one.folder / "resubmitted.tsv").read_text() == "7\t8\n"
    names = {entry.partition("=")[0] for entry in (tmp_path / "fakes/asked.env").read_text().split("\0")}
    assert {name for name in names if name.startswith(("SLURM", "SBATCH"))} == {"SLURM_CONF"}


def test_a_requeue_that_is_granted_submits_nothing(tmp_path: Path):
    run(small_job(tmp_path), tmp_path / "fakes", FAKE_STATUS=SAVED)
    assert "requeue 7" in (tmp_path / "fakes/scontrol.asked").read_text() and not (tmp_path / "fakes/asked").exists()


def test_a_cluster_may_say_that_nothing_is_ever_requeued(tmp_path: Path):
    one = small_job(tmp_path, Slurm(restart="resubmit"))
    assert "#SBATCH --no-requeue" in script(one) and "#SBATCH --requeue" not in script(one)
    run(one, tmp_path / "fakes", FAKE_STATUS=SAVED)
    assert "requeue 7" not in (tmp_path / "fakes/scontrol.asked").read_text() and (tmp_path / "fakes/asked").exists()


def test_where_nodes_may_not_submit_either_it_is_said_how_to_go_on(tmp_path: Path):
    one = small_job(tmp_path)
    done, _ = refused(one, tmp_path / "fakes", "requeue sbatch")
    assert done.status == 75 and f"resume from the last checkpoint with: vfm-launch retry {one.run_dir}" in done.said
    assert not (one.folder / "resubmitted.tsv").exists()


def test_a_task_of_an_array_is_submitted_as_the_task_that_it_is_without_the_nodes_that_failed(tmp_path: Path):
    one = small_job(tmp_path, array=4)
    task = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "6"}
    _, words = refused(one, tmp_path / "fakes", **task, FAKE_EXCLUDED="n[4-5]")
    assert {"--array=3", "--exclude=n[4-5]", "--dependency=afterany:6_3"} <= set(words)
    assert (one.folder / "resubmitted.tsv").read_text() == "6_3\t8_3\n"


def test_the_code_of_the_launch_is_not_put_on_the_path_again_and_again(tmp_path: Path):
    one = small_job(tmp_path)
    one = small_job(tmp_path, module_path=(one.folder / "code", one.folder / "code/src"))
    refused(one, tmp_path / "fakes", PYTHONPATH="/mine")
    assert "PYTHONPATH=/mine" in (tmp_path / "fakes/asked.env").read_text().split("\0")


@pytest.mark.parametrize(("before", "ends"), [(1, False), (2, True)])
def test_attempts_count_on_from_job_to_job(tmp_path: Path, before, ends):
    one = small_job(tmp_path)
    (one.folder / "logs").mkdir(parents=True)
    (one.folder / "resubmitted.tsv").write_text("4\t5\n99\t98\n5\t7\n")
    lines = [f"t\t{number}\t0\t137\tlost_rank\t-1\tn1\tx\tno\t\n" for number in (4, 5)[-before:]]
    (one.folder / "attempts.tsv").write_text("".join([*lines, "t\t98\t0\t137\tlost_rank\t-1\tn1\tx\tno\t\n"]))
    done = run(one, tmp_path / "fakes", FAKE_STATUS="137", FAKE_REFUSES="requeue")
    assert ("not restarted: 3 attempts" in done.said) == ends
    assert (tmp_path / "fakes/asked").exists() != ends
    assert (one.folder / "attempts.tsv").read_text().splitlines()[-1].split("\t")[1:5] == [
        "7", str(before), "137", "lost_rank",
    ]  # fmt: skip


def saved(path: Path) -> None:
    """A finished checkpoint: a folder with a manifest, or one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == checkpoint_names.LIGHTNING:
        path.write_text("x")
    else:
        path.mkdir()
        (path / checkpoint_names.MANIFEST).write_text("{}")


@pytest.mark.parametrize(("end", "step"), [(checkpoint_names.LIGHTNING, ""), ("", "fine tune")])
def test_a_training_that_advances_is_begun_again_however_often_its_time_is_up(tmp_path: Path, end: str, step: str):
    one = small_job(tmp_path / "a'b [x]", step=step)
    if step:
        saved(one.run_dir / "an earlier step/checkpoints" / checkpoint_names.name(10**10))
    for number in range(6):
        saved(one.run_dir / step / "checkpoints" / f"{checkpoint_names.name(2 * 10**9 + number)}{end}")
        done = run(one, tmp_path / "fakes", FAKE_STATUS=SAVED)
        assert "not restarted" not in done.said
    for _ in range(3):
        done = run(one, tmp_path / "fakes", FAKE_STATUS="137")
    assert "not restarted: 3 attempts in a row made no progress" in done.said
    kept = [line.split("\t")[5] for line in (one.folder / "attempts.tsv").read_text().splitlines()]
    assert kept[:6] == [str(2 * 10**9 + number) for number in range(6)]


def test_work_in_a_run_folder_that_is_a_link_to_another_disk_is_seen_to_advance(tmp_path: Path):
    one = small_job(tmp_path)
    (tmp_path / "disk/out/0").mkdir(parents=True)
    one.run_dir.parent.mkdir()
    one.run_dir.symlink_to(tmp_path / "disk")
    for number in range(2):
        (tmp_path / f"disk/out/0/{number}").touch()
        run(one, tmp_path / "fakes", FAKE_STATUS=SAVED)
    assert [line.split("\t")[8] for line in (one.folder / "attempts.tsv").read_text().splitlines()] == ["yes", "yes"]


def test_where_no_attempt_can_be_counted_none_is_begun_again(tmp_path: Path):
    one = small_job(tmp_path)
    (one.folder / "attempts.tsv").mkdir(parents=True)
    done = run(one, tmp_path / "fakes", FAKE_STATUS="137")
    assert done.status == 137 and "attempts.tsv cannot be written" in done.said
    assert "requeue" not in (tmp_path / "fakes/scontrol.asked").read_text()


@pytest.mark.parametrize(("silent", "again"), [(3, True), (99, False)])
def test_a_controller_that_says_nothing_at_the_end_is_asked_again_for_a_while(tmp_path: Path, silent: int, again: bool):
    done = run(small_job(tmp_path), tmp_path / "fakes", FAKE_STATUS=SAVED, FAKE_SILENT=str(silent))
    asked = tmp_path / "fakes/scontrol.asked"
    assert ("requeue 7" in asked.read_text()) == again
    assert ("Slurm does not answer; resume with: vfm-launch retry" in done.said) != again


def test_half_a_line_of_a_full_disk_hides_no_later_attempt(tmp_path: Path):
    one = small_job(tmp_path)
    one.folder.mkdir(parents=True)
    (one.folder / "attempts.tsv").write_text("2026-01-01T00:00:00Z\t7\t")
    run(one, tmp_path / "fakes", FAKE_STATUS="137")
    lines = (one.folder / "attempts.tsv").read_text().splitlines()
    assert len(lines) == 2 and lines[1].split("\t")[1:5] == ["7", "0", "137", "lost_rank"]


def test_a_log_that_is_one_long_line_of_a_progress_bar_does_not_hide_the_end(tmp_path: Path):
    bars = "\r 50%|#####     |" * 5000
    done = run(small_job(tmp_path), tmp_path / "fakes", FAKE_STATUS="137",
               FAKE_SAYS=f"{bars}\rsrun: error: Node failure on n1\n")  # fmt: skip
    assert "vfm-launch: node_fault" in done.said


def test_the_script_and_status_know_the_same_checkpoints(tmp_path: Path):
    one = small_job(tmp_path)
    folder = one.run_dir / "checkpoints"
    for name in ("step-00000012", "step-00000300.ckpt", "step-100000000.ckpt", "step-99999999"):
        saved(folder / name)
    for name in ("step-900000001.ckpt.tmp", ".step-900000002.ckpt", "step-900000003", "step-9.ckpt", "last.ckpt"):
        folder.joinpath(name).mkdir()
    run(one, tmp_path / "fakes", FAKE_STATUS=SAVED)
    (line,) = (one.folder / "attempts.tsv").read_text().splitlines()
    assert line.split("\t")[5] == str(progress(one.run_dir).checkpoint) == "100000000"


def test_a_line_of_jobs_ends_also_where_a_file_says_that_it_does_not():
    known = successors(["1\t2", "2_3\t4_3", "4\t1", "half a", "-x\t9", "2\t5"])
    assert line_of("1", known) == ["1", "2", "4", "5"] and line_of("9", known) == ["9"]


def went_on(run_dir: Path, *lines: str) -> None:
    """What jobs noted when they submitted others."""
    (run_dir / "launch/resubmitted.tsv").write_text("".join(f"{line}\n" for line in lines))


def test_a_job_that_goes_on_as_another_is_told_by_the_new_number(tmp_path: Path):
    launch = kept(tmp_path, job("job", "7"))
    attempt(tmp_path, "7", "time_limit")
    went_on(tmp_path, "7\t8")
    launch.look_again()
    (found,) = states(launch, in_queue("7", "FAILED") | in_queue("8", "PENDING", "Dependency"))
    assert (found.number, found.state, found.live) == ("8", "waiting", True) and "after time_limit" in found.more
    attempt(tmp_path, "8", "ok")
    (found,) = states(launch, {})
    assert found.done and launch.slurm_ids() == ["7", "8"]


def test_what_vanished_after_it_went_on_is_not_told_by_the_end_of_the_job_before(tmp_path: Path):
    launch = kept(tmp_path, job("job", "7"))
    attempt(tmp_path, "7", "time_limit")
    went_on(tmp_path, "7\t8")
    launch.look_again()
    assert [(one.state, one.live) for one in states(launch, {})] == [("not begun", False)]


def test_a_task_that_goes_on_elsewhere_is_one_of_its_array(tmp_path: Path):
    launch = kept(tmp_path, job("job", "7", array=2))
    attempt(tmp_path, "7_0", "ok")
    attempt(tmp_path, "7_1", "lost_rank")
    went_on(tmp_path, "7_1\t8_1")
    launch.look_again()
    queue = in_queue("8_1", "RUNNING")
    (found,) = states(launch, queue)
    assert (found.number, found.state, found.left) == ("7", "running", (1,))
    launch.values["runs"] = ["a", "b"]
    assert [word for _, word, _ in run_states(launch, queue, launch.attempts())] == ["done", "running"]
    attempt(tmp_path, "8_1", "ok")
    assert states(launch, {})[0].done
