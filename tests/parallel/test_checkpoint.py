# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are whole or absent, and damage is found."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.parallel import checkpoint


def write(folder: Path, step: int, keep: int | None = None) -> Path:
    """One small checkpoint."""
    weights = {"w": torch.full((3,), float(step))}
    return checkpoint.save(folder, step, {"model": weights, "ema": weights}, {"step": step}, keep)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    loaded = checkpoint.load(write(tmp_path, 7))
    assert (loaded.step, loaded.state) == (7, {"step": 7})
    assert torch.equal(loaded.groups["ema"]["w"], torch.full((3,), 7.0))


def test_views_that_share_storage_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    path = checkpoint.save(tmp_path, 1, {"model": {"a": base, "b": base[1:3]}}, {}, None)
    assert torch.equal(checkpoint.load(path).groups["model"]["b"], torch.tensor([1.0, 2.0]))


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step, keep=2)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    file = bad / ("manifest.json" if damage == "manifest" else "model.safetensors")
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    file.write_bytes(data[: len(data) // 2] if damage in ("truncate", "manifest") else data)
    if damage == "remove":
        file.unlink()
    assert checkpoint.latest(tmp_path) == good
    with pytest.raises(CorruptCheckpoint, match="step-00000002"):
        checkpoint.load(bad)


def test_when_all_are_damaged_it_says_so_instead_of_starting_over(tmp_path: Path) -> None:
    (write(tmp_path, 1) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match="None of the 1 checkpoints"):
        checkpoint.latest(tmp_path)


def test_a_half_written_checkpoint_is_not_seen_and_is_cleared_away(tmp_path: Path) -> None:
    leftover = tmp_path / ".step-00000009.123.tmp"
    leftover.mkdir(parents=True)
    assert checkpoint.latest(tmp_path) is None
    write(tmp_path, 1, keep=1)
    assert not leftover.exists()


def test_weights_are_found_in_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    assert torch.equal(checkpoint.load_weights(tmp_path, "ema")["w"], torch.full((3,), 2.0))
    with pytest.raises(UserError, match=r"no average weights; it has ema\.safetensors, model\.safetensors"):
        checkpoint.load_weights(tmp_path, "average")
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoint.load_weights(tmp_path / "elsewhere", "ema")


def test_a_checkpoint_of_another_format_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("nemo_vfm.checkpoint/1", "nemo_vfm.checkpoint/9"))
    with pytest.raises(UserError, match=r"reads 'nemo_vfm\.checkpoint/1'"):
        checkpoint.latest(tmp_path)
