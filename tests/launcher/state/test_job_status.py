"""Tests the state that people are told, from run folders and what Slurm says or has forgotten."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from launcher.slurm.job_status import looked_at, progress, silence, states
from launcher.slurm.slurm import QueuedJob
from launcher.state import logs
from launcher.state.launch_folder import KeptLaunch, read
from launcher.state.logs import Tail
from nemo_vfm.core.errors import UserError


def job(name: str, *numbers: str, **more: object) -> dict:
    """One job of launch.json."""
    return {"name": name, "script": f"{name}.sh", "step": "", "phase": "", "waits_for": "", "array": 0, "kind": "",
            "nodes": 1, "tasks_per_node": 1, "gpus_per_node": 0, "slurm": list(numbers), **more}  # fmt: skip


def kept(run: Path, *jobs: dict) -> KeptLaunch:
    """A launch of these jobs."""
    (run / "launch").mkdir(parents=True, exist_ok=True)
    words = {"cluster": "x", "nodes": 1, "trust": [], "allow": [], "code": False, "parts": 0}
    sizes = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": 0, "degrees": {}, "script": "job.sh", "waits_for": ""}
    values = {"schema": "nemo_vfm.launch/1", "id": "abc", "created": "now", "title": "t", "recipe": "r",
              "workdir": str(run), "words": words, "cluster": {"_target_": "launcher.request.cluster.Slurm"},
              "code": {"files": 0, "sha256": "", "commit": None},
              "jobs": [{**sizes, **one} for one in jobs]}  # fmt: skip
    (run / "launch/launch.json").write_text(json.dumps(values))
    return read(run)


def in_queue(number: str, state: str, reason: str = "None") -> dict[str, QueuedJob]:
    """What Slurm says of one job."""
    return {number: QueuedJob(id=number, array=number.partition("_")[0], state=state, reason=reason, left="1:00",
                              begins="2026-01-01T00:00:00", nodes="n1", name="x")}  # fmt: skip


def attempt(run: Path, number: str, kind: str, sentence: str = "") -> None:
    """A line that a job wrote at its end."""
    with (run / "launch/attempts.tsv").open("a") as file:
        file.write(f"2026-01-01T00:00:00Z\t{number}\t0\t1\t{kind}\t7\tn1\t{sentence}\tno\t\n")


def one(launch: KeptLaunch, queue: dict[str, QueuedJob] | None = None) -> tuple[str, str]:
    """State and what more is said, of a launch of one job."""
    (found,) = states(launch, queue or {})
    return found.state, found.more


@pytest.mark.parametrize(
    ("state", "reason", "word", "more"),
    [("RUNNING", "None", "running", "on n1 since"), ("PENDING", "Dependency", "waiting", "for the job before it"),
     ("PENDING", "Resources", "waiting", "for free nodes"), ("PENDING", "QOSGrpGRES", "waiting", "QOSGrpGRES")],
)  # fmt: skip
def test_what_waits_or_runs_is_said_in_words(tmp_path, state, reason, word, more):
    found = one(kept(tmp_path, job("job", "12")), in_queue("12", state, reason))
    assert found[0] == word and more in found[1]


def test_a_job_that_was_requeued_waits_to_go_on_and_says_after_what(tmp_path):
    launch = kept(tmp_path, job("job", "12"))
    attempt(tmp_path, "12", "preempted")
    assert one(launch, in_queue("12", "PENDING", "BeginTime")) == (
        "waiting", "to resume after preempted (until 2026-01-01T00:00:00)"
    )  # fmt: skip


def test_where_slurm_has_forgotten_a_job_its_own_last_line_counts(tmp_path):
    launch = kept(tmp_path, job("job", "12"))
    assert one(launch)[0] == "not begun"
    attempt(tmp_path, "12", "preempted")
    attempt(tmp_path, "12", "non_finite", "the loss is not finite")
    assert one(launch) == ("non_finite", "the loss is not finite")
    attempt(tmp_path, "12", "ok")
    assert states(launch, {})[0].done


def test_the_end_of_an_earlier_number_is_not_that_of_the_latest(tmp_path):
    launch = kept(tmp_path, job("job", "12", "15"))
    attempt(tmp_path, "12", "configuration", "no such folder")
    assert one(launch, in_queue("15", "CANCELLED"))[0] == "cancelled"


def test_a_step_is_done_where_it_says_so_even_if_nobody_wrote_a_line(tmp_path):
    launch = kept(tmp_path, job("curate", "12", step="curate"))
    (tmp_path / "curate").mkdir()
    (tmp_path / "curate/done.json").write_text("{}")
    assert one(launch)[0] == "done"


def test_an_array_is_done_when_every_task_is_under_whatever_number(tmp_path):
    launch = kept(tmp_path, job("parts", "12", "13", array=3))
    for task, kind in (("12_0", "ok"), ("12_1", "lost_rank"), ("12_2", "ok")):
        attempt(tmp_path, task, kind, "a rank died")
    (found,) = states(launch, {})
    assert (found.done, found.left) == (False, (1,)) and "2 of 3 tasks are done" in found.more
    attempt(tmp_path, "13_1", "ok")
    (found,) = states(launch, {})
    assert found.done and found.left == ()


def test_step_speed_end_in_sight_loss_and_the_last_whole_checkpoint_come_from_the_folder(tmp_path):
    beat = datetime.now(UTC).isoformat()
    status = {"state": "running", "heartbeat": beat, "step": 120, "total_steps": 1000, "step_s": 0.5, "ranks": 4,
              "reads_longest": {"rank": 3, "seconds": 0.02}, "elsewhere": {"1": "reads the samples"}}  # fmt: skip
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 119, "loss": 1}\n{"step": 120, "loss": 0.25, "samples_per_s": 8}\n{"st'
    )
    for step, whole in ((100, True), (110, False)):
        (tmp_path / f"checkpoints/step-{step:08d}").mkdir(parents=True)
        if whole:
            (tmp_path / f"checkpoints/step-{step:08d}/manifest.json").write_text("{}")
    found = progress(tmp_path)
    assert (found.step, found.total_steps, found.left_s, found.loss) == (120, 1000, 440.0, 0.25)
    assert found.rates == {"samples_per_s": 8.0} and found.checkpoint == 100
    assert "rank 3" in found.slowest and found.elsewhere == {"1": "reads the samples"}
    for times, said in ((1.05, False), (1.4, True), ("1.4", False), (None, False)):
        more = {"computes_slowest": {"rank": 2, "seconds": 1e-3, "times": times}}
        (tmp_path / "status.json").write_text(json.dumps(status | more))
        slowest = progress(tmp_path).slowest
        assert ("rank 2 is 1.4x slower than the rest on the same matmul" in slowest) is said and "rank 3" in slowest
    assert silence(found) == ""


def test_a_run_that_says_it_runs_and_gives_no_sign_of_life_is_named(tmp_path):
    beat = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "heartbeat": beat}))
    assert "no heartbeat for 30" in silence(progress(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": true, "heartbeat": 3, "state": 7}', "\x00" * 10, "[" * 9999])
def test_files_that_are_damaged_say_nothing_and_break_nothing(tmp_path, text):
    for name in ("status.json", "metrics.jsonl"):
        (tmp_path / name).write_text(text)
    found = progress(tmp_path)
    assert (found.step, found.state, found.loss) == (None, None, None)


def test_the_step_of_a_workflow_has_its_own_checkpoints(tmp_path):
    launch = kept(tmp_path, job("train", "12", step="train"))
    (tmp_path / "train/checkpoints/step-00000005").mkdir(parents=True)
    (tmp_path / "train/checkpoints/step-00000005/manifest.json").write_text("{}")
    assert looked_at(launch, "train").checkpoint == 5


def test_who_follows_one_job_waits_for_no_other(tmp_path, monkeypatch):
    launch = kept(tmp_path, job("first", "101"), job("second", "102"), job("third", "103", array=2))
    found = in_queue("101", "COMPLETED") | in_queue("102", "RUNNING") | in_queue("103_1", "FAILED")
    monkeypatch.setattr(logs, "live_jobs", lambda kept: found)
    over = {name: Tail(launch, name)._is_over() for name in (None, "first", "second", "third")}
    assert over == {None: False, "first": True, "second": False, "third": True}
    found |= in_queue("102", "COMPLETED") | in_queue("103_0", "PENDING")
    assert [Tail(launch, name)._is_over() for name in (None, "second", "third")] == [False, True, False]


def test_half_a_line_of_attempts_is_passed_over(tmp_path):
    launch = kept(tmp_path, job("job", "12"))
    attempt(tmp_path, "12", "ok")
    with (tmp_path / "launch/attempts.tsv").open("a") as file:
        file.write("2026-01-01T00:00:00Z\t12\t0")
    assert len(launch.attempts()) == 1


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0c", "\x1e"])
def test_no_sign_in_a_sentence_hides_an_attempt(tmp_path, sign):
    launch = kept(tmp_path, job("job", "12"))
    attempt(tmp_path, "12", "unknown", f"a caption{sign}of somebody")
    assert [one.kind for one in launch.attempts()] == ["unknown"]


def test_a_launch_of_another_version_is_refused(tmp_path):
    kept(tmp_path, job("a"))
    file = tmp_path / "launch/launch.json"
    file.write_text(file.read_text().replace("launch/1", "launch/2"))
    with pytest.raises(UserError, match="another version"):
        read(tmp_path)


def test_what_was_cancelled_says_so_while_it_ends_and_after_slurm_has_forgotten_it(tmp_path):
    launch = kept(tmp_path, job("job", "12"))
    launch.record_cancellation({"12"})
    launch = read(tmp_path)
    assert one(launch, in_queue("12", "COMPLETING")) == ("cancelled", "it is still ending")
    assert one(launch) == ("cancelled", "")
    launch.record_submission("job", "13")
    assert one(launch, in_queue("13", "PENDING"))[0] == "waiting"


def test_a_fifo_in_the_place_of_a_status_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "status.json")
    assert progress(tmp_path).state is None
