"""Tests that known cuts are found at their frames, and that spans always cover the video."""

from itertools import pairwise

import cv2
import numpy as np
import pytest
from scenedetect import AdaptiveDetector, FrameTimecode

from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.video.decode import open_video
from tests.support import shot_films
from tests.support.films import FPS, black, fade_through_black, pan, write_film
from tests.support.shot_films import corpus


def shots_of(path, **settings):
    with open_video(path, "pyav") as reader:
        return list(AdaptiveSplit(**settings).spans(reader.frames(), fps=FPS))


def test_known_cuts_are_found_at_their_frames(tmp_path):
    lengths = [20, 31, 12, 25, 40]
    film = write_film(tmp_path / "a.mp4", *(pan(seed, length) for seed, length in enumerate(lengths)))
    edges = [0, *np.cumsum(lengths).tolist()]
    assert shots_of(film) == list(pairwise(edges))


def test_one_shot_that_moves_fast_is_not_cut(tmp_path):
    assert shots_of(write_film(tmp_path / "a.mp4", pan(3, 40, step_px=6))) == [(0, 40)]


def test_a_fade_through_black_is_cut_where_it_is_black(tmp_path):
    film = write_film(tmp_path / "a.mp4", fade_through_black(pan(1, 30), pan(2, 30)))
    first, second = shots_of(film, trim_s=None)
    assert first[1] == second[0]
    assert abs(first[1] - 30) <= 1


def test_a_long_black_stretch_is_a_shot_of_its_own(tmp_path):
    film = write_film(tmp_path / "a.mp4", pan(1, 20), black(15), pan(2, 20))
    assert shots_of(film) == [(0, 20), (20, 35), (35, 55)]


def test_long_shots_are_cut_and_a_short_tail_joins_the_piece_before(tmp_path):
    film = write_film(tmp_path / "a.mp4", pan(1, 53))
    assert shots_of(film, max_length_s=2) == [(0, 24), (24, 53)]
    assert shots_of(film, max_length_s=2, short_tail="leave") == [(0, 24), (24, 48), (48, 53)]


def test_no_frame_gives_no_shot():
    assert list(AdaptiveSplit().spans([], fps=24)) == []


def test_cuts_are_those_of_pyscenedetects_adaptive_detector():
    for film in corpus(5, 4):
        detector = AdaptiveDetector(3.5, min_scene_len=round(0.6 * shot_films.FPS), window_width=3)
        theirs = [
            cut.frame_num
            for number, frame in enumerate(film.frames)
            for cut in detector.process_frame(
                FrameTimecode(number, fps=shot_films.FPS), cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
            )
        ]
        splitter = AdaptiveSplit(black=0, trim_s=None)
        ours = [first for first, _ in splitter.spans(film.frames, fps=shot_films.FPS) if first]
        assert len(theirs) > 4 and ours == theirs


def test_impossible_settings_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match=r"min_length_s 5\.0"):
        AdaptiveSplit(min_length_s=5.0, max_length_s=2.0)
