# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A real training over several processes: its numbers and samples are those of one, whoever shares what with whom."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import tiny_training
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import BATCH, changes, command, metrics, notes, trained


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents to train on."""
    return tiny_training.shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    on_ranks(1, trained, changes(data, folder))
    return folder


def require_same(folder: Path, other: Path) -> None:
    """All that is measured, to 1e-5."""
    ours, theirs = metrics(folder), metrics(other)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=1e-5)


def require_each_sample_once(folder: Path, other: Path, num_data: int) -> None:
    """A step's samples are those of one process, cut into as many slices as there are data ranks."""
    ours, theirs = notes(folder), notes(other)
    assert ours.keys() == theirs.keys()
    for step, by_rank in ours.items():
        whole = theirs[step][0][0]
        share = BATCH // num_data
        expected = {whole[first : first + share] for first in range(0, BATCH, share)}
        assert len(set(whole)) == BATCH and {keys for taken in by_rank.values() for keys in taken} == expected


def test_the_command_alone_starts_two_processes_that_train_as_one(data: Path, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        command(data, folder, "parallel.shard=2"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(folder / "report.html") and "Warning" not in done.stderr
    require_same(folder, alone)
    require_each_sample_once(folder, alone, 2)
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    assert "WARNING" not in done.stderr + (folder / "ranks/rank-1.log").read_text()
    names = {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {"ranks", ".lock"}
    assert names == {path.relative_to(alone).parts[0] for path in alone.rglob("*")} | {
        "recipe.yaml", "manifest.json", "status.json", "started.json", "done.json", "report.html",
    }  # fmt: skip
    assert len(list((folder / "samples").iterdir())) == 2


LAYOUTS = [
    (["parallel.replicate=2"], 2),
    (["parallel.tensor=2", "parallel.sequence=true"], 1),
    (["parallel.context=2"], 1),
]


@pytest.mark.parametrize(("layout", "num_data"), LAYOUTS, ids=lambda value: str(value))
def test_however_two_processes_share_the_work_the_run_is_that_of_one(
    data: Path, alone: Path, tmp_path: Path, layout: list[str], num_data: int
) -> None:
    folder = tmp_path / "run"
    on_ranks(2, trained, changes(data, folder, *layout))
    require_same(folder, alone)
    require_each_sample_once(folder, alone, num_data)
