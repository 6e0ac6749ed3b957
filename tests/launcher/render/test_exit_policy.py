"""Tests that Python and bash classify an end alike, by exit status and last words, and agree on a restart."""

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from launcher.render.exit_policy import KINDS, RULES, branches
from tests.support.slurm_jobs import run, small_job

LOST = "rank 1 of 4 died, hangs, or its machine is down: its heartbeats have stopped. Run the same command again"
SILENT = "rank 3 of 4 has sent no heartbeat for 8 s (the last: it takes step 3); it hangs, was stopped"
ELSEWHERE = "rank 2 of 4 reads a file for so long that the others, which wait for it, gave up"
NAN = "The loss (nan) or its gradient norm (nan) is not finite at batch 7 (samples a, b), on rank 1 of 4"
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
#: status, what was said, whether the time limit was near -> kind
CASES = [
    (0, "", False, "ok"),
    (0, "kept on although a shard was out of memory", True, "ok"),
    (76, "phase ramp_1 is done", False, "next_phase"),
    (75, "a signal stopped the run at step 4", False, "preempted"),
    (75, "a signal stopped the run at step 4", True, "time_limit"),
    (138, "", False, "preempted"),
    (143, "", True, "time_limit"),
    (130, "", False, "interrupted"),
    (3, "every clip was dropped", False, "nothing_kept"),
    (2, "hidden 1152 is not divisible by num_heads 17", False, "configuration"),
    (2, NAN, False, "non_finite"),
    (2, NAN, True, "non_finite"),
    (69, LOST, False, "lost_rank"),
    (137, "", False, "lost_rank"),
    (139, LOST, False, "lost_rank"),
    (134, "terminate called\nsrun: error: n1: task 1: Aborted", False, "lost_rank"),
    (
        69,
        "rank 0 of 4 timed out waiting for the others (Connection closed). Another rank died or hangs",
        True,
        "lost_rank",
    ),
    (69, "rank 2 can no longer reach rank 0 (Broken pipe)", False, "lost_rank"),
    (69, SILENT, False, "hang"),
    (137, SILENT, False, "hang"),
    (69, ELSEWHERE, False, "hang"),
    (69, "rank 1 of 4 ended: UserError: this rank's disk is full; make room", False, "configuration"),
    (69, "rank 1 of 4 ended: RuntimeError: this rank has a bad day", False, "unknown"),
    (1, "RuntimeError: this rank has a bad day", False, "unknown"),
    (1, CUDA, False, "out_of_memory"),
    (69, f"rank 1 of 4 ended: OutOfMemoryError: {CUDA}", False, "out_of_memory"),
    (137, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", False, "out_of_memory"),
    (1, "rank 1 of 4 ended: AcceleratorError: CUDA error: uncorrectable ECC error encountered", False, "node_fault"),
    (137, f"{LOST}\nsrun: error: Node failure on n2", False, "node_fault"),
    (127, "nemo-vfm: command not found", False, "configuration"),
    (69, "sh: something else that ends with 69", False, "unknown"),
    (7, "", False, "unknown"),
    (255, "", False, "unknown"),
    (1, "", True, "unknown"),
]


def classify(status, text, near_limit=False):
    """The kind of an end, by the first rule that fits; the batch script's branches must say the same."""
    return next(KINDS[rule.kind] for rule in RULES if fits(rule, status, text, near_limit))


def fits(rule, status, text, near_limit):
    return (
        any(fnmatchcase(str(status), pattern) for pattern in rule.statuses)
        and (near_limit or not rule.near)
        and (not rule.texts or any(part in text for part in rule.texts))
    )


@pytest.mark.parametrize(("status", "said", "near", "kind"), CASES)
def test_an_end_is_of_one_kind(status: int, said: str, near: bool, kind: str):
    assert classify(status, said, near).name == kind


def test_the_batch_script_says_the_same_of_each():
    lines = (
        f'while (( $# )); do status="$1" near="$2" said="$3"; shift 3\ncase "$status:$near:$said" in\n{branches()}\n'
    )
    words = [word for status, said, near, _ in CASES for word in (str(status), "near" if near else "far", said)]
    done = subprocess.run(
        ["bash", "-c", f"{lines}esac; echo $kind; done", "bash", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [kind for *_, kind in CASES]


def test_every_rule_decides_some_case_and_every_kind_has_one():
    found = {classify(status, said, near).name for status, said, near, _ in CASES}
    assert found == set(KINDS) == {rule.kind for rule in RULES}


#: Anybody's words, wherever they may stand; none says how an attempt ended.
WORDS = (
    "a boy fallen off the bus", "GPU has fallen off the bus", "skipped: CUDA out of memory", "MemoryError: skipped",
    "Node failure on n1", "DUE TO NODE FAILURE", "process 7 on n9 has sent no heartbeat for 60 s", "oom_kill",
    "rank 1 of 4 ended: UserError: no", "is not finite at batch 7", "uncorrectable ECC error", "Out Of Memory",
)  # fmt: skip
PLACES = ("{}", "caption: {}", "WARNING 12:00 {}", '"{}"', "[ 12.5] {}", "  {}", "0: {}", "12: srun: error: {}",
          "kernel {}", "ValueError: {}",
          "Traceback (most recent call last):\n  File x, line 1\nRuntimeError: {}" + "\nstep" * 60)  # fmt: skip
LABELLED = {"nodes": 1, "tasks_per_node": 2, "max_restarts": 9}


@pytest.mark.parametrize("order", [1, -1])
def test_what_the_work_prints_does_not_decide_how_an_attempt_ended(tmp_path: Path, order: int):
    said = "".join(f"{place.format(text)}\n" for place in PLACES[::order] for text in WORDS)
    one = small_job(tmp_path, **LABELLED)
    done = run(one, tmp_path / "fakes", FAKE_STATUS="137", FAKE_SAYS=said)
    assert "vfm-launch: lost_rank (status 137)" in done.said
    assert "requeue 7" in (tmp_path / "fakes/scontrol.asked").read_text()
    (line,) = (one.folder / "attempts.tsv").read_text().splitlines()
    assert line.split("\t")[-1] == ""  # no node is blamed


TRACE = "Traceback (most recent call last):\n{0}  File x, line 1\n{0}    x()\n{0}"


@pytest.mark.parametrize(("said", "status", "kind"), [
    ("srun: error: Node failure on n1", 137, "node_fault"),
    ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 1-01T00 DUE TO NODE FAILURE ***", 137, "node_fault"),
    ("slurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.0.", 137, "out_of_memory"),
    ("srun: error: n1: task 0: Out Of Memory", 137, "out_of_memory"),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 137, "node_fault"),
    ("Nov 27 02:10:05 n1 kernel: Out of memory: Killed process 12 (python)", 137, "out_of_memory"),
    ("[12345.678901] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", 137, "node_fault"),
    ("vfm-launch: the check of node n1 failed: 3 GPUs of 4", 1, "node_fault"),
    (TRACE.format("") + "torch.OutOfMemoryError: CUDA out of memory. Tried\nbye", 1, "out_of_memory"),
    (" 3: " + TRACE.format(" 3: ") + "MemoryError\n12: RuntimeError: Connection closed", 137, "out_of_memory"),
    ("terminate called\n  what():  CUDA error: uncorrectable ECC error encountered", 134, "node_fault"),
    ("MemoryError: \nThe traceback is in /run/traceback.txt", 1, "out_of_memory"),
    (TRACE.format("") + "MemoryError\nunexpected: MemoryError: ", 1, "out_of_memory"),
    (f"2: {SILENT}. Run the same command again\n2: bye", 137, "hang"),
    (f"0: {ELSEWHERE}", 69, "hang"), (f"1: {LOST}", 69, "lost_rank"),
    ("3: rank 3 lost the rendezvous store, which rank 0 keeps", 69, "lost_rank"),
])  # fmt: skip
def test_what_slurm_the_kernel_or_we_say_of_an_end_decides_it(tmp_path: Path, said: str, status: int, kind: str):
    done = run(small_job(tmp_path, **LABELLED), tmp_path / "fakes", FAKE_STATUS=str(status), FAKE_SAYS=f"{said}\n")
    assert f"vfm-launch: {kind} (status {status})" in done.said


def test_where_slurm_does_not_say_when_the_time_is_up_it_is_not_near(tmp_path: Path):
    done = run(small_job(tmp_path), tmp_path / "fakes", FAKE_STATUS="75")  # this squeue says nothing of it
    assert "vfm-launch: preempted (status 75)" in done.said


def test_what_the_user_must_mend_is_never_begun_again():
    never = {
        "ok",
        "next_phase",
        "out_of_memory",
        "non_finite",
        "configuration",
        "nothing_kept",
        "interrupted",
        "unknown",
    }
    assert {kind.name for kind in KINDS.values() if not kind.again} == never
