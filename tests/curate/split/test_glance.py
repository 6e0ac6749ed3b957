"""Tests that glances give PySceneDetect's numbers: exactly on all pixels, closely on a sample."""

import cv2
import numpy as np
import pytest
from scenedetect import ContentDetector, FrameTimecode, StatsManager

from nemo_vfm.curate.split.finder import Eye, pick
from tests.support.shot_films import corpus


def theirs(frames) -> list[float]:
    """PySceneDetect's content_val of each frame; 0 for the first."""
    detector = ContentDetector()
    detector.stats_manager = StatsManager()
    detector.stats_manager.register_metrics(detector.get_metrics())
    codes = [FrameTimecode(number, fps=24.0) for number in range(len(frames))]
    for code, frame in zip(codes, frames, strict=True):
        detector.process_frame(code, cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    return [0.0] + [detector.stats_manager.get_metrics(code, ["content_val"])[0] for code in codes[1:]]


def test_the_content_score_is_pyscenedetects():
    (film,) = corpus(1, 1, 4)
    frames = [cv2.resize(frame, (96, 54)) for frame in film.frames]
    eye = Eye()
    assert [eye.look(frame).content for frame in frames] == pytest.approx(theirs(frames), abs=1e-9)


def test_a_sample_of_a_larger_frame_gives_nearly_the_same_score():
    (film,) = corpus(2, 1, 4)
    frames = [cv2.resize(frame, (455, 256)) for frame in film.frames]
    eye = Eye()
    ours, whole = np.array([eye.look(frame).content for frame in frames]), np.array(theirs(frames))
    assert np.abs(ours - whole).max() < 1.0
    assert np.abs(ours - whole).mean() < 0.1


def test_brightness_is_the_mean_of_the_colours():
    frame = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    assert Eye().look(frame).brightness == pytest.approx(frame.mean())


def test_a_sample_keeps_the_proportions_and_a_small_frame_is_left_alone():
    assert pick(np.zeros((256, 455, 3), np.uint8)).shape == (54, 96, 3)
    assert pick(np.zeros((455, 256, 3), np.uint8)).shape == (96, 54, 3)
    assert pick(np.zeros((20, 30, 3), np.uint8)).shape == (20, 30, 3)
    assert pick(np.zeros((50_000, 1, 3), np.uint8)).shape == (16_100, 1, 3)


def test_a_frame_of_another_size_is_no_change_and_no_error():
    eye = Eye()
    eye.look(np.zeros((20, 30, 3), np.uint8))
    assert eye.look(np.full((30, 20, 3), 200, np.uint8)).content == 0.0
