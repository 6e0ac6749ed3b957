"""Tests that the benchmarks of sampling compare the same videos."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.config import build, compose
from nemo_vfm.parallel.checkpoint import checkpoint
from tests.support.benchmarks import figures_of
from tests.support.repository import ROOT


@pytest.mark.soak  # a whole benchmark; tests/synth/test_sampling_ranks.py compares the same latents
def test_ways_of_splitting_are_timed_on_equal_latents(tmp_path: Path) -> None:
    found = figures_of("sampling_ranks", "--quick", folder=tmp_path)
    assert 0 < found["max_difference"] < 1e-5, "ways that round alike would be one way"
    assert len(found) == 11 and all(value > 0 for value in found.values())


def untrained(folder: Path) -> Path:
    job = build(compose(ROOT / "recipes/diffusion/sample.yaml", ["checkpoint=null"]))
    torch.manual_seed(1)
    weights = {name: 0.1 * torch.randn_like(tensor) for name, tensor in job.model().state_dict().items()}
    checkpoint.save(folder / "checkpoints", 1, {"ema": weights}, {})
    return folder / "checkpoints"


@pytest.mark.soak  # a whole benchmark
def test_the_table_of_the_step_cache_begins_without_an_error(tmp_path: Path) -> None:
    found = figures_of("step_cache", str(untrained(tmp_path)), "--quick", "--steps", "6", folder=tmp_path)
    assert found["0.0, latent error"] == found["0.0, blocks left out"] == 0
    shares = [value for name, value in found.items() if name.endswith("left out")]
    assert len(shares) == 6 and shares == sorted(shares)


@pytest.mark.slow
def test_fp8_changes_pixels_less_than_anyone_sees(tmp_path: Path) -> None:
    found = figures_of("fp8_sampling", str(untrained(tmp_path)), "--quick", "--steps", "6", folder=tmp_path)
    assert found["bf16"] > found["current"] > 25 and 25 < found["current, attention too"] != found["current"]
