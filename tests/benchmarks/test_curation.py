"""Tests that both sides of the curation benchmark find the same shots and scores on one small video."""

from pathlib import Path

import cv2
import pytest

from nemo_vfm.core.log import logger
from tests.support.benchmarks import figures_of, module_of

FIGURES = ("score_ratio", "end_to_end_ratio", "two_process_ratio")


@pytest.mark.slow  # a curation by each peer
def test_one_small_film_is_compared_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    curation = module_of("curation")
    threads, level = cv2.getNumThreads(), logger().level
    films = tmp_path / "films"
    films.mkdir()
    curation.film(films / "0.mp4", 0, 2, 288, 272)
    cv2.setNumThreads(1)
    logger().setLevel("ERROR")
    try:
        mine = {films / "0.mp4": curation.ours(films / "0.mp4", tmp_path / "thumbnails")}
        theirs = {films / "0.mp4": curation.script(films / "0.mp4")}
        curation.agree(list(mine), mine, theirs)
        figures = curation.measure(films, list(mine), 1, 6.0)
    finally:
        cv2.setNumThreads(threads)
        logger().setLevel(level)
    assert len(mine[films / "0.mp4"]) == 2
    assert tuple(figures) == FIGURES and all(value > 0 for value in figures.values())
    assert "the script on our frames differs by at most motion 0.0" in capsys.readouterr().out


@pytest.mark.soak
def test_the_quick_benchmark_shows_what_it_is_for(tmp_path: Path):
    figures = figures_of("curation", "--quick", "--rounds", "1", folder=tmp_path)
    assert tuple(figures) == (*FIGURES, "long_film_ratio")
    # Bounds far below what a machine at rest shows (docs/how-to/video/curation.md), since this one may be busy.
    assert figures["score_ratio"] > 1.5 and figures["end_to_end_ratio"] > 1
    assert figures["long_film_ratio"] >= 1.7  # in processor time
