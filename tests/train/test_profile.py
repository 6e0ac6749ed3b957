"""Tests what the profiling switches write for a few steps, and what they say where there is nothing to write."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from nemo_vfm.config import check, compose
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.callbacks.memory_snapshot import MemorySnapshot
from nemo_vfm.train.callbacks.profiling import Profile
from tests.train.test_job import lines, train


def calls(file: Path) -> list[str]:
    """The names of what a trace holds."""
    with gzip.open(file) as opened:
        return [event["name"] for event in json.load(opened)["traceEvents"] if "name" in event]


def test_a_profile_holds_the_steps_it_was_asked_for_and_no_other(tmp_path: Path):
    train("6 steps", callbacks={"profile": Profile(first_step=3, num_steps=2)}).run(Run(tmp_path))
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "rank-0-steps-3-4.json.gz",
        "rank-0-steps-3-4.txt",
    ]
    once = calls(tmp_path / "profile/rank-0-steps-3-4.json.gz").count("aten::linear")
    train("6 steps", callbacks={"profile": Profile(first_step=3, num_steps=4)}).run(Run(tmp_path / "long"))
    twice = calls(tmp_path / "long/profile/rank-0-steps-3-6.json.gz").count("aten::linear")
    assert once and twice == 2 * once  # two linears a step
    assert "aten::addmm" in (tmp_path / "profile/rank-0-steps-3-4.txt").read_text()


def test_a_profile_changes_no_number(tmp_path: Path):
    for name, callbacks in (("with", {"profile": Profile(first_step=1, num_steps=2)}), ("without", {})):
        train("3 steps", callbacks=callbacks).run(Run(tmp_path / name))
    ours, theirs = ([line["loss"] for line in lines(tmp_path / name)] for name in ("with", "without"))
    assert ours == theirs


def test_a_run_that_ends_inside_leaves_what_it_has_and_one_that_goes_on_behind_says_so(tmp_path: Path, caplog):
    train("3 steps", callbacks={"profile": Profile(first_step=2, num_steps=9)}).run(Run(tmp_path))
    assert (tmp_path / "profile/rank-0-steps-2-3.json.gz").is_file()
    train("4 steps", callbacks={"profile": Profile(first_step=1, num_steps=2)}).run(Run(tmp_path, resume=True))
    assert len(list((tmp_path / "profile").iterdir())) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_memory_snapshot_without_a_gpu_is_a_sentence_and_the_run_goes_on(tmp_path: Path, capfd):
    train("4 steps", callbacks={"memory": MemorySnapshot(step=2)}).run(Run(tmp_path))
    assert "this process has no GPU" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "memory").exists() and len(lines(tmp_path)) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_memory_snapshot_is_written_after_its_step(tmp_path: Path):
    train("4 steps", callbacks={"memory": MemorySnapshot(step=2)}).run(Run(tmp_path))
    assert (tmp_path / "memory/rank-0-step-2.snapshot").stat().st_size > 1000


def test_both_are_one_word_on_the_command_line():
    words = ["data.shards=x", "callbacks.profile=steps", "callbacks.memory=snapshot"]
    assert not check(compose("diffusion/train_small", words))


@pytest.mark.parametrize("wrong", [{"first_step": 0}, {"num_steps": 0}, {"ranks": [-1]}], ids=str)
def test_a_profile_of_no_step_is_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        Profile(**wrong)
