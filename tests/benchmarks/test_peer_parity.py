"""Tests that every family of video models is the same function in diffusers, and what a conversion costs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import skip_without
from tests.support.repository import ROOT

skip_without("diffusers")


def called(out: Path, *words: str) -> dict[str, Any]:
    """What a benchmark found."""
    command = [sys.executable, *words, "--json", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_every_family_is_the_same_function_in_diffusers(tmp_path: Path):
    found = called(tmp_path / "out.json", "benchmarks/peer_parity.py")
    assert found["num_families"] == 14 and found["max_difference"] < 1e-5
    assert found["tensors_left_over"] == found["tensors_changed"] == 0
    own = [row for row in found["rows"] if not row["family"].startswith("autoencoder")]
    assert len(own) == 11 and all(row["difference"] > 0 for row in own), "two libraries that round alike are one"


@pytest.mark.soak  # a whole benchmark
def test_every_family_is_sampled_as_diffusers_samples_it(tmp_path: Path):
    found = called(tmp_path / "out.json", "benchmarks/pipeline_parity.py")
    assert found["num_families"] == 12 and 0 < found["max_latent_difference"] < 1e-3
    assert found["max_given_difference"] < 0.03


@pytest.mark.soak  # a whole benchmark
def test_the_short_form_of_the_conversions_gives_every_figure(tmp_path: Path):
    found = called(tmp_path / "out.json", "benchmarks/convert.py", "--quick")
    assert found["speed_over_copy_by_way"].keys() == {"in", "out"} and min(found["speed_over_copy_by_way"].values()) > 0
    assert len(found["copy_s"]) == 1 and found["peak_over_largest_mb"] < 400


@pytest.mark.soak
def test_a_conversion_costs_little_more_than_a_copy(tmp_path: Path):
    found = called(tmp_path / "out.json", "benchmarks/convert.py")
    assert found["files"] == 4 and found["gigabytes"] > 0.9
    assert found["speed_over_copy"] > 0.4 and found["peak_over_largest_mb"] < 400
