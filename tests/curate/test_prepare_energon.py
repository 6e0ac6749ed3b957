"""Tests the job around `data/shards/energon_index.py`: the validation part, a second run, and what it refuses."""

import json
from pathlib import Path

import pytest

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.prepare_energon import WriteEnergon
from nemo_vfm.data.shards.shard_files import ShardWriter


def folder(path: Path, count: int) -> Path:
    with ShardWriter(path, samples_per_shard=4) as writer:
        for number in range(count):
            writer.write(f"clip-{number // 2}-w{number % 2}", {"txt": b"x"}, {"clip": f"clip-{number // 2}"})
    return path


def test_windows_of_one_clip_are_in_one_part_and_a_second_run_changes_nothing(tmp_path: Path):
    shards = folder(tmp_path / "shards", 60)
    job, run = WriteEnergon(shards=shards, val_fraction=0.25), Run(tmp_path / "run")
    outcome = job.run(run)
    written = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    assert 4 <= 60 - outcome.figures["train"] <= 28 and outcome.figures["samples"] == 60
    excluded = {line.strip("- '\n").partition("/")[2].rpartition("-w")[0]
                for line in (shards / ".nv-meta/split.yaml").read_text().splitlines() if "/clip" in line}  # fmt: skip
    trained = {line.strip("- '\n").partition("/")[2].rpartition("-w")[0]
               for line in (shards / ".nv-meta/val.yaml").read_text().splitlines() if "/clip" in line}  # fmt: skip
    assert excluded and trained and not excluded & trained
    assert job.run(run) == outcome
    assert {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()} == written


def test_without_a_val_part_all_is_trained_on(tmp_path: Path):
    shards = folder(tmp_path, 6)
    assert WriteEnergon(shards=shards).run(Run(tmp_path)).summary.endswith("6 train")
    assert not (shards / ".nv-meta/val.yaml").exists()
    assert sum(json.loads((shards / ".nv-meta/.info.json").read_text())["shard_counts"].values()) == 6


def test_what_is_not_finished_empty_or_far_away_is_refused(tmp_path: Path):
    with pytest.raises(NothingKept):
        WriteEnergon(shards=folder(tmp_path / "empty", 0)).run(Run(tmp_path))
    with pytest.raises(UserError):
        WriteEnergon(shards=tmp_path / "nowhere").run(Run(tmp_path))
    with pytest.raises(ValueError, match="local path"):
        WriteEnergon(shards=Path("s3://bucket/x"))
    with pytest.raises(ValueError, match="below 1"):
        WriteEnergon(shards=tmp_path, val_fraction=1.0)
