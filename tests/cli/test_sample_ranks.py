"""Tests that one command samples on two ranks that it starts, and resumes where it was killed."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.support import preloaded

pytestmark = pytest.mark.cluster  # several ranks

LIMIT_S = 240.0  # of any run here, on a machine that has other things to do
TEXTS = "[a red circle, a blue square, a green cross, a yellow disc, a grey bar]"


def start(folder: Path, *words: str) -> preloaded.Started:
    """`nemo-vfm run` of the sampling recipe, untrained and small."""
    command = [sys.executable, "-m", "nemo_vfm", "run", "recipes/diffusion/sample.yaml", "checkpoint=null",
               f"run_dir={folder}", f"prompts.texts={TEXTS}", "batch_size=1", "height_px=16", "width_px=16",
               "num_frames=9", *words]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return preloaded.Started(command, env=environment, err=folder.with_suffix(".txt"))


def ended(folder: Path, *words: str) -> str:
    status, said = start(folder, *words).wait(LIMIT_S), folder.with_suffix(".txt").read_text()
    assert status == 0, said
    return said


def drawn(folder: Path) -> list[Path]:
    """Videos that are there; one that is being written has another name."""
    return sorted((folder / "samples").glob("[0-9][0-9][0-9].mp4"))


def test_a_killed_sampling_on_two_ranks_resumes_and_writes_what_one_rank_writes(tmp_path: Path) -> None:
    ended(tmp_path / "alone", "pipeline.sampler.steps=30")
    words = ("pipeline.sampler.steps=30", "parallel.shard=2")
    running = start(tmp_path / "ranks", *words)
    until = time.monotonic() + LIMIT_S
    while not drawn(tmp_path / "ranks"):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    running.kill()
    running.wait(LIMIT_S)
    kept = {path: path.stat().st_mtime_ns for path in drawn(tmp_path / "ranks")}
    assert 0 < len(kept) < 5
    said = ended(tmp_path / "ranks", *words)
    assert "sampled 5 of 5" not in said and "of 5 videos" in said
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in drawn(tmp_path / "ranks")}.items()
    for mine, theirs in zip(drawn(tmp_path / "ranks"), drawn(tmp_path / "alone"), strict=True):
        assert mine.read_bytes() == theirs.read_bytes()
