"""Tests how much time a run gets to end, from what it says of itself."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.plan import preflight
from launcher.plan.launch import lead_s, limit_s
from launcher.request.cluster import Slurm
from nemo_vfm.core import progress


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, 300),
        ({"step_s": 4.0}, 300),
        ({"checkpoint_s": 2.0, "step_s": 0.5}, 120),
        ({"checkpoint_s": 200.0, "step_s": 31.0}, 720),  # 662 s
        ({"checkpoint_s": 60.0, "step_s": None}, 180),
        ({"checkpoint_s": -1.0}, 300),
        ({"checkpoint_s": 80_000.0}, 65_520),  # the most that Slurm takes
        ({"checkpoint_s": "long"}, 300),
        ([1, 2], 300),
    ],
)
def test_the_lead_follows_from_the_slowest_checkpoint(tmp_path: Path, said: object, expected: int):
    (tmp_path / "status.json").write_text(json.dumps(said))
    assert lead_s(tmp_path) == expected


def test_a_run_that_has_not_begun_has_the_usual_lead(tmp_path: Path):
    assert lead_s(tmp_path) == 300
    (tmp_path / "status.json").write_text("{half")
    assert lead_s(tmp_path) == 300


def test_the_slowest_checkpoint_is_what_a_run_tells():
    progress.forget()
    for seconds in (2.0, 5.25, 3.0):
        progress.checkpoint(seconds)
    assert progress.current() == {"checkpoint_s": 5.25}
    progress.forget()


@pytest.mark.parametrize(("time", "seconds"), [
    (30, 1800), ("30", 1800), ("4:00", 240), ("4:01", 300), ("4:00:00", 14_400), ("0:30:00", 1800), ("90:0", 5400),
    ("2-0", 172_800), ("2-12", 216_000), ("1-1:30", 91_800), ("1-00:00:30", 86_460), ("0", None), ("0:00", None),
])  # fmt: skip
def test_a_time_limit_is_read_as_slurm_reads_it(time: str | int, seconds: int | None):
    assert limit_s(time) == seconds


@pytest.mark.parametrize(("time", "checkpoint_s", "wrong", "words"), [
    ("4:00", None, True, ("4:00 is 4 minutes", "5 minutes before its end", "would do no work", "cluster.time=1:00:00")),
    ("6", None, True, ("6 is 6 minutes", "would do no work")),
    ("1:00:00", 1500.0, True, ("1 hour", "1 hour 15 minutes before", "slowest checkpoint", "cluster.time=3:00:00")),
    ("2:00:00", 1500.0, False, ("more than half", "cluster.time=3:00:00")),
    ("9", None, False, ("9 minutes", "more than half")), ("4:00:00", None, False, ("is 4 hours for each attempt",)),
    ("1-2:30", None, False, ("1 day 2 hours 30 minutes",)), ("0", None, False, ("sets no limit",)),
])  # fmt: skip
def test_a_limit_that_leaves_no_time_to_work_is_refused_and_any_is_said_in_words(
    tmp_path: Path, time: str, checkpoint_s: float | None, wrong: bool, words: tuple[str, ...]
):
    (tmp_path / "status.json").write_text(json.dumps({"checkpoint_s": checkpoint_s}))
    launch = SimpleNamespace(where=Slurm(time=time), lead_s=lead_s(tmp_path))
    (found,) = preflight._limit(launch)
    assert found.wrong is wrong and all(word in found.text for word in words), found.text
    assert ("half" in found.text) == ("more than half" in words)
