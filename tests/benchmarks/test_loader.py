"""Tests that ranks with shared fetching move the formula's bytes, and that benchmarks of loading and decoding run."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of

PEERS = ("webdataset", "megatron.energon")


@pytest.mark.soak  # a whole benchmark; tests/train/test_fetch_together.py counts what is fetched
def test_bytes_of_ranks_that_share_are_those_of_the_formula(tmp_path: Path):
    for name in PEERS:
        pytest.importorskip(name)
    figures = figures_of("loader", "--quick", "--rounds", "1", "--only", "unique", folder=tmp_path)
    for ranks in (2, 4):
        assert figures[f"unique_fetched_over_formula_{ranks}"] == 1
        assert figures[f"unique_gathered_over_formula_{ranks}"] == 1
        # Plain loading also reads the heads that lie between members.
        assert ranks <= figures[f"plain_over_unique_fetched_{ranks}"] < 1.02 * ranks


@pytest.mark.soak
def test_every_part_gives_its_figures(tmp_path: Path):
    for name in PEERS:
        pytest.importorskip(name)
    figures = figures_of("loader", "--quick", "--rounds", "1", folder=tmp_path)
    assert figures["samples_per_s_ratio"] > 1 and figures["energon_samples_per_s_ratio"] > 1
    assert {"resume_ratio", "video_clips_per_s_ratio", "video_clips_per_cpu_s_ratio"} <= figures.keys()


@pytest.mark.slow
def test_the_quick_benchmark_of_decoders_gives_the_time_of_each(tmp_path: Path):
    (figures,) = figures_of("decoders", "--quick", "--rounds", "1", folder=tmp_path).values()
    assert "pyav" in figures and figures.keys() <= {"pyav", "decord", "torchcodec"}
    assert all(one["once_ms"] > 0 and one["again_ms"] > 0 for one in figures.values())
