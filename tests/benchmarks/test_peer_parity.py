"""Tests that every family of video models is the same function in diffusers, and what a conversion costs."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of
from tests.support.installed import skip_without

skip_without("diffusers")


@pytest.mark.slow
def test_every_family_is_the_same_function_in_diffusers(tmp_path: Path):
    found = figures_of("peer_parity", folder=tmp_path, timeout_s=600)
    assert found["num_families"] == 14 and found["max_difference"] < 1e-5
    assert found["tensors_left_over"] == found["tensors_changed"] == 0
    own = [row for row in found["rows"] if not row["family"].startswith("autoencoder")]
    assert len(own) == 11 and all(row["difference"] > 0 for row in own), "two libraries that round alike are one"


@pytest.mark.soak  # a whole benchmark
def test_every_family_is_sampled_as_diffusers_samples_it(tmp_path: Path):
    found = figures_of("pipeline_parity", folder=tmp_path, timeout_s=600)
    assert found["num_families"] == 12 and 0 < found["max_latent_difference"] < 1e-3
    assert found["max_given_difference"] < 0.03


@pytest.mark.soak  # a whole benchmark
def test_the_short_form_of_the_conversions_gives_every_figure(tmp_path: Path):
    found = figures_of("convert", "--quick", folder=tmp_path, timeout_s=600)
    assert found["speed_over_copy_by_way"].keys() == {"in", "out"} and min(found["speed_over_copy_by_way"].values()) > 0
    assert len(found["copy_s"]) == 1 and found["peak_over_largest_mb"] < 400


@pytest.mark.soak
def test_a_conversion_costs_little_more_than_a_copy(tmp_path: Path):
    found = figures_of("convert", folder=tmp_path, timeout_s=600)
    assert found["files"] == 4 and found["gigabytes"] > 0.9
    assert found["speed_over_copy"] > 0.4 and found["peak_over_largest_mb"] < 400
