"""Tests that recipes/recommendation/dlrm_teacher.yaml gives the same numbers on several ranks and killed."""

import re
import sys
from pathlib import Path

import pytest
import torch

from nemo_vfm.config import build, compose
from nemo_vfm.core.types.job import Run
from nemo_vfm.parallel.checkpoint import checkpoint
from tests.support import preloaded
from tests.support.combinations import cases
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import NAME, metrics

RECIPE, ROWS = str(ROOT / "recipes/recommendation/dlrm_teacher.yaml"), 60
FATE = f"steps.train.callbacks.fate={{_target_: {NAME}.Fate, how: is_killed, rank: 0, step: 5}}"


def words(folder: Path, *more: str) -> list[str]:
    """What makes the recipe this small."""
    names = [f"c{number}" for number in range(1, 27)]
    rows = [f"steps.log.log.features.{name}.rows={ROWS}" for name in names]
    return [
        f"run_dir={folder}", "steps.log.log.num_samples=4000", *rows,
        *(f"steps.train.model.rows.{name}={ROWS}" for name in names), "steps.train.data.batch_size=256",
        "steps.train.loop.duration=8 steps", "steps.train.loop.checkpoint.every_steps=2",
        "steps.train.loop.validation.every_steps=4", "steps.train.schedule.warmup_steps=2", *more,
    ]  # fmt: skip


def command(folder: Path, *more: str) -> list[str]:
    """The recipe from its log to the comparison."""
    return [sys.executable, "-m", "nemo_vfm", "run", RECIPE, "--trust", NAME, *words(folder, *more)]


def final(train: Path) -> checkpoint.Checkpoint:
    found = checkpoint.open_latest(train / "checkpoints")
    assert found is not None and found.step == 8
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, undisturbed."""
    folder = tmp_path_factory.mktemp("alone")
    done = preloaded.run(command(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def trained(_: int, log: Path, folder: Path, degrees: str) -> None:
    """The training alone, on the log of another run."""
    composed = compose(RECIPE, words(log, f"steps.train.parallel={degrees}"))
    build(composed).steps["train"].run(Run(folder, seed=composed.seed))


LAYOUTS = [(2, "{replicate: 2}"), (4, "{replicate: 2, shard: 2}")]


@pytest.mark.cluster
@pytest.mark.parametrize(("count", "degrees"), cases(LAYOUTS, LAYOUTS[1:]))
def test_several_ranks_have_the_losses_and_the_rows_of_one(
    alone: Path, tmp_path: Path, count: int, degrees: str
) -> None:
    on_ranks(count, trained, alone, tmp_path, degrees)
    for ours, theirs in zip(metrics(tmp_path), metrics(alone / "train"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    ours, theirs = final(tmp_path).groups, final(alone / "train").groups
    assert any(name.endswith("c26.weight") for name in theirs["model"])
    for group, tensors in theirs.items():
        assert ours[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            scale = float(tensor.float().abs().max()) + 1e-8
            off = (ours[group][name].float() - tensor.float()).abs() / scale
            assert float(off.mean()) <= 1e-6 and float(off.max()) <= 1e-4, f"{group} {name}: {float(off.max()):.1e}"


@pytest.mark.slow
def test_a_kill_in_training_changes_no_bit_of_weights_rows_and_predictions(alone: Path, tmp_path: Path) -> None:
    killed = command(tmp_path, FATE)
    first = preloaded.run(killed)
    assert (tmp_path / "train/fate-0").read_text() == "x" and first.returncode == -9, first.stderr[-2000:]
    assert not (tmp_path / "compare").exists()
    second = preloaded.run(killed)
    assert second.returncode == 0 and re.search(r"resuming at step\s+[24]", second.stderr), second.stderr[-2000:]
    ours, theirs = final(tmp_path / "train").groups, final(alone / "train").groups
    assert ours.keys() == theirs.keys() >= {"model", "optimizer", "tables"}
    for group, tensors in theirs.items():
        assert [name for name in tensors if not torch.equal(ours[group][name], tensors[name])] == [], group
    for name in ("compare/predictions.parquet", "compare/comparison.json"):
        assert (tmp_path / name).read_bytes() == (alone / name).read_bytes()
    assert metrics(tmp_path / "train") == metrics(alone / "train")
