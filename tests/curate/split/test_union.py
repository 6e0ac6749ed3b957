"""Tests on generated and real videos that cuts, fades and dissolves are found, and flashes and fast turns are not."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from scenedetect import AdaptiveDetector, ContentDetector, FrameTimecode

from nemo_vfm.curate.examine.frame_stream import Walk
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.union import UnionSplit
from tests.support.cut_score import CutScore
from tests.support.shot_films import FPS, Film, corpus

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
SINTEL_CUTS_S = (14.50, 15.50, 21.79, 23.88, 25.42, 26.00)


@pytest.fixture(scope="module")
def films() -> list[Film]:
    return list(corpus(71, 10))


def figures(films, cuts_of) -> dict[str, float]:
    score = CutScore()
    for film in films:
        score.add(cuts_of(film), film.events)
    return score.figures()


def ours(splitter):
    return lambda film: [first for first, _ in splitter.spans(film.frames, fps=FPS) if first]


def theirs(make):
    def cuts(film):
        detector = make()
        codes = [FrameTimecode(number, fps=FPS) for number in range(len(film.frames))]
        bgr = [cv2.cvtColor(frame, cv2.COLOR_RGB2BGR) for frame in film.frames]
        return [cut.frame_num for one in zip(codes, bgr, strict=True) for cut in detector.process_frame(*one)]

    return cuts


@pytest.mark.slow
def test_the_generated_corpus_meets_the_bars(films):
    union = figures(films, ours(UnionSplit(trim_s=None)))
    for default in (AdaptiveDetector, ContentDetector):
        assert union["hard_f1"] >= figures(films, theirs(default))["hard_f1"]
    assert union["fade_recall"] >= 0.9
    assert union["flash_false_positives"] <= 0.05


@pytest.mark.slow
def test_leaving_flashes_out_loses_hardly_a_cut(films):
    with_all = figures(films, ours(UnionSplit(flash_s=0.0, trim_s=None)))
    without = figures(films, ours(UnionSplit(trim_s=None)))
    assert without["hard_recall"] >= with_all["hard_recall"] - 0.02
    assert without["flash_false_positives"] < with_all["flash_false_positives"]


@pytest.mark.slow
def test_dissolves_are_found_by_their_own_finder_only(films):
    assert figures(films, ours(UnionSplit(dissolve=None, trim_s=None)))["dissolve_recall"] < 0.2
    assert figures(films, ours(UnionSplit(trim_s=None)))["dissolve_recall"] >= 0.8


def test_light_that_comes_up_slowly_is_no_dissolve():
    picture = np.random.default_rng(0).uniform(40, 120, (9, 16, 3))
    levels = np.concatenate([np.ones(40), np.linspace(1, 2, 24), 2 * np.ones(40)])
    frames = [cv2.resize((picture * level).astype(np.uint8), (160, 90)) for level in levels]
    assert list(UnionSplit(trim_s=None).spans(frames, fps=24)) == [(0, len(frames))]


def test_what_looks_like_a_dissolve_within_a_second_of_a_cut_is_left_to_the_cut():
    random = np.random.default_rng(1)
    a, b, c = (random.uniform(0, 255, (9, 16, 3)) for _ in range(3))
    dissolved = [(1 - share) * a + share * b for share in np.linspace(0, 1, 9)]
    small = [a] * 40 + dissolved + [b] * 12 + [c] * 60
    frames = [cv2.resize(picture.astype(np.uint8), (160, 90)) for picture in small]
    assert list(UnionSplit(trim_s=None).spans(frames, fps=24)) == [(0, 61), (61, len(frames))]


def test_impossible_settings_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match=r"flash_s must be between 0 and min_length_s 0\.6, got 1"):
        UnionSplit(flash_s=1)
    with pytest.raises(ValueError, match="ratio must be above 1"):
        UnionSplit(ratio=1)


@pytest.mark.slow  # splits every shared video
@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.parametrize(
    "splitter",
    [AdaptiveSplit(max_length_s=60, trim_s=None), UnionSplit(max_length_s=60, trim_s=None)],
    ids=["adaptive", "union"],
)
def test_the_trailers_cuts_are_found_and_films_of_one_shot_are_not_cut(splitter):
    def cuts_s(name: str) -> list[float]:
        with Walk(DATA / name, side_px=256) as walk:
            return [first / walk.info.fps for first, _ in splitter.spans(walk.frames(), fps=walk.info.fps) if first]

    found = cuts_s("sintel_trailer_30s.mp4")
    for cut_s in SINTEL_CUTS_S:
        assert min(abs(cut_s - other) for other in found) <= 2 / 24 + 0.005
    for name in ("crush_027.mp4", "dashcam_6.mp4", "dashcam_7.mp4"):
        assert cuts_s(name) == []
