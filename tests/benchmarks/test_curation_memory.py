"""Tests that a curation keeps far less of each video than its frames, with the memory benchmark."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of

# Two shots of 24 frames of 128x96 in RGB: what would stay if somebody kept frames.
FRAMES_OF_A_FILM_KB = 2 * 24 * 128 * 96 * 3 / 1000


@pytest.mark.soak  # a whole benchmark
def test_few_films_are_counted(tmp_path: Path):
    figures = figures_of("curation_memory", "--films", "1,2", "--recipe", "clips", folder=tmp_path)
    assert figures["peak_mb_1"] > 50 and figures["peak_mb_2"] > 50


@pytest.mark.soak
def test_nobody_keeps_the_frames_of_two_hundred_films(tmp_path: Path):
    figures = figures_of("curation_memory", "--films", "20,200", folder=tmp_path, timeout_s=1200)
    assert figures["kb_per_film"] < FRAMES_OF_A_FILM_KB / 4
