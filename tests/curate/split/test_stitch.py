"""Tests that neighbouring spans that look alike are joined, and no others."""

import numpy as np
import pytest

from nemo_vfm.curate.split.content import ContentSplit
from nemo_vfm.curate.split.stitch import ColourLayout, FrameEmbedder, Stitch
from nemo_vfm.curate.split.stride import FixedStride
from tests.support.cut_score import CutScore
from tests.support.films import FPS, pan
from tests.support.shot_films import FPS as FILM_FPS
from tests.support.shot_films import corpus

FILM = np.concatenate([pan(0, 48), pan(1, 36)])


def test_pieces_of_one_shot_are_joined_and_shots_are_not():
    strides = FixedStride(length_s=1, min_length_s=0.5)
    assert list(Stitch(splitter=strides).spans(FILM, fps=FPS)) == [(0, 48), (48, 84)]


def test_nothing_is_joined_beyond_the_longest_length():
    strides = FixedStride(length_s=1, min_length_s=0.5)
    spans = list(Stitch(splitter=strides, max_length_s=2.5).spans(FILM, fps=FPS))
    assert spans == [(0, 24), (24, 48), (48, 72), (72, 84)]


@pytest.mark.slow  # splits a generated corpus
def test_it_mends_a_sensitive_splitter_and_loses_hardly_a_cut():
    sensitive = ContentSplit(threshold=20, flash_s=0, min_length_s=0.3, max_length_s=60)
    scores = {"before": CutScore(), "after": CutScore()}
    for film in corpus(61, 8):
        for name, splitter in (("before", sensitive), ("after", Stitch(splitter=sensitive, max_length_s=60))):
            cuts = [first for first, _ in splitter.spans(film.frames, fps=FILM_FPS) if first]
            scores[name].add(cuts, film.events)
    before, after = scores["before"].figures(), scores["after"].figures()
    assert after["flash_false_positives"] < before["flash_false_positives"]
    assert after["hard_recall"] >= before["hard_recall"] - 0.03


def test_another_embedder_may_be_given_and_decides():
    class Alike:
        def keep(self, frame):
            return frame[:1, :1]

        def embed(self, kept):
            return np.ones((len(kept), 1), np.float32)

    assert isinstance(Alike(), FrameEmbedder) and isinstance(ColourLayout(), FrameEmbedder)
    strides = FixedStride(length_s=1, min_length_s=0.5)
    assert list(Stitch(splitter=strides, embedder=Alike()).spans(FILM, fps=FPS)) == [(0, 84)]


def test_layouts_are_unit_vectors_and_light_alone_changes_little():
    frame = pan(0, 1)[0]
    dim, same, other = ColourLayout().embed([frame // 2, frame, pan(1, 1)[0]])
    assert np.linalg.norm(same) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(dim - same) < 0.1 < np.linalg.norm(other - same)


def test_impossible_distances_are_refused():
    with pytest.raises(ValueError, match="max_distance 3"):
        Stitch(splitter=FixedStride(), max_distance=3)
