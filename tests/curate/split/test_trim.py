"""Tests that trimmed clips hold no frame of a transition, and that hard cuts lose no frame."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest

from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.union import UnionSplit
from tests.support.cut_score import match
from tests.support.filmed_shots import DATA, filmed_corpus
from tests.support.shot_films import FPS, Film, film


def blended(film: Film, spans: list[Span]) -> tuple[int, list[str]]:
    """How many transitions were found, and which of these left frames in a clip."""
    gaps = [(a[1], b[0]) for a, b in pairwise(spans)]
    cuts = [first for first, _ in UnionSplit(trim_s=None).spans(film.frames, fps=FPS) if first]
    found = [event for event in match(cuts, film.events, 2) if event is not None and event.stop > event.start]
    found = [event for event in found if event.kind in ("black", "dissolve", "wipe")]
    inside = {frame for start, stop in gaps for frame in range(start, stop)}
    return len(found), [str(event) for event in found if not inside.issuperset(range(event.start, event.stop))]


def check(films: Iterable[Film], least: int) -> None:
    results = [blended(film, list(UnionSplit().spans(film.frames, fps=FPS))) for film in films]
    assert sum(number for number, _ in results) >= least
    assert [left for _, left in results if left] == []


def test_trimmed_clips_hold_no_blended_frame():
    check([film(seed, ["dissolve", "cut", "black", "dissolve"]) for seed in range(4)], 8)


@pytest.mark.slow  # cuts real videos
@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_trimmed_clips_of_real_footage_hold_no_blended_frame():
    check(filmed_corpus(11, 3), 6)


@pytest.mark.soak
@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_hardly_a_trimmed_clip_of_real_footage_holds_a_blended_frame():
    results = [blended(film, list(UnionSplit().spans(film.frames, fps=FPS))) for film in filmed_corpus(101)]
    assert sum(number for number, _ in results) >= 60
    assert sum(len(left) for _, left in results) <= 1


def test_a_fade_goes_as_a_whole_with_the_adaptive_splitter_too():
    (faded,) = [film(5, ["black"])]
    first, second = AdaptiveSplit().spans(faded.frames, fps=FPS)
    assert first[1] <= faded.events[0].start and faded.events[0].stop <= second[0]
    assert second[0] - first[1] <= 2 * (faded.events[0].stop - faded.events[0].start)


def hard() -> tuple[np.ndarray, ...]:
    return film(3, ["cut", "cut"]).frames


def test_a_hard_cut_loses_no_frame_by_default_and_a_margin_where_asked_for():
    edges = [first for first, _ in UnionSplit(trim_s=None).spans(hard(), fps=FPS)]
    assert len(edges) == 3
    assert [first for first, _ in UnionSplit().spans(hard(), fps=FPS)] == edges
    spans = list(UnionSplit(trim_s=2 / FPS).spans(hard(), fps=FPS))
    assert spans == [(0, edges[1] - 2), (edges[1] + 2, edges[2] - 2), (edges[2] + 2, len(hard()))]


@pytest.mark.parametrize("trim_s", [-0.1, 11.0, float("nan")])
def test_a_margin_out_of_range_is_refused(trim_s):
    with pytest.raises(ValueError, match="trim_s must be at"):
        UnionSplit(trim_s=trim_s)
