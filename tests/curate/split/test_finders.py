"""Tests finders, which see frame by frame, against rules that see the whole video at once."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.curate.split.dissolve import DissolveLimits, Dissolves
from nemo_vfm.curate.split.finder import AnyOf, Black, Finder, Glance, MinSpacing, Peaks
from nemo_vfm.curate.split.flash import WithoutFlashes
from nemo_vfm.curate.split.shot_lengths import Lengths, SpanBuilder


def glance(brightness: float = 0.0, content: float = 0.0) -> Glance:
    return Glance(content, np.full((9, 16, 3), brightness, np.uint8))


class Told:
    """A finder that gives these cuts, `behind` frames late."""

    def __init__(self, cuts: Iterable[int], behind: int = 0) -> None:
        self.cuts, self.behind, self.count = sorted(cuts), behind, 0

    def see(self, glance: Glance) -> list[int]:
        self.count += 1
        return self._before(self.count - self.behind)

    def end(self) -> list[int]:
        return self._before(self.count)

    def certain(self) -> int:
        return max(0, self.count - self.behind)

    def _before(self, stop: int) -> list[int]:
        ready = [cut for cut in self.cuts if cut < stop]
        self.cuts = [cut for cut in self.cuts if cut >= stop]
        return ready


def run(finder: Finder, glances: Sequence[Glance]) -> list[int]:
    """All cuts; on the way none may come before what was certain."""
    found, certain = [], 0
    for one in glances:
        new = finder.see(one)
        assert all(cut >= certain for cut in new)
        assert finder.certain() >= certain, "certainty goes back"
        found += new
        certain = finder.certain()
    left = finder.end()
    assert all(cut >= certain for cut in left)
    assert found + left == sorted(set(found + left))
    return found + left


def black_at_once(dark: Sequence[bool], min_frames: int) -> list[int]:
    edges = np.flatnonzero(np.diff(np.array([False, *dark, False]).astype(int))).tolist()
    cuts = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - start >= min_frames:
            cuts += [start, stop]
        elif start > 0 and stop < len(dark):
            cuts.append((start + stop) // 2)
    return [cut for cut in cuts if 0 < cut < len(dark)]


def join_at_once(first: Iterable[int], second: Iterable[int], min_frames: int) -> list[int]:
    cuts = sorted(set(first))
    for other in sorted(second):
        if all(abs(other - cut) >= min_frames for cut in cuts):
            cuts.append(other)
    return sorted(cuts)


def pieces_at_once(shot: tuple[int, int], longest: int, tail: int) -> list[tuple[int, int]]:
    starts = list(range(*shot, longest))
    if len(starts) > 1 and shot[1] - starts[-1] < tail:
        starts.pop()
    return list(pairwise([*starts, shot[1]]))


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 10))
def test_black_stretches_are_found_as_in_the_whole_film(dark, min_frames):
    glances = [glance(0 if is_dark else 99) for is_dark in dark]
    assert run(Black(12, min_frames), glances) == black_at_once(dark, min_frames)


@given(
    st.sets(st.integers(1, 79)), st.sets(st.integers(1, 79)), st.integers(0, 9), st.integers(0, 9), st.integers(1, 12)
)
def test_two_finders_are_joined_as_in_the_whole_film(first, second, behind, later, min_frames):
    joined = AnyOf(Told(first, behind), Told(second, later), min_frames)
    assert run(joined, [glance()] * 80) == join_at_once(first, second, min_frames)


def test_a_fade_beside_a_hard_cut_does_not_cut_twice():
    assert run(AnyOf(Told([10, 40]), Told([12, 25, 27]), 5), [glance()] * 50) == [10, 25, 40]


@given(st.sets(st.integers(1, 60)), st.integers(1, 20))
def test_spaced_cuts_are_never_nearer_than_asked_for(cuts, min_frames):
    kept = run(MinSpacing(Told(cuts), min_frames), [glance()] * 61)
    assert all(b - a >= min_frames for a, b in pairwise([0, *kept]))
    far = [cut for cut in cuts if cut >= min_frames]
    assert kept[:1] == sorted(far)[:1]


@given(st.lists(st.integers(1, 70), max_size=5), st.integers(1, 30), st.integers(0, 30))
def test_shots_are_cut_into_pieces_as_in_the_whole_film(lengths, longest, tail):
    tail = min(tail, longest)
    edges = np.cumsum([0, *lengths]).tolist()
    pieces, told = SpanBuilder(Lengths(1, longest, tail)), []
    for frame in range(edges[-1]):
        told += pieces.add([(frame, frame)] if frame in edges[1:-1] else [], frame + 1)
    told += pieces.end(edges[-1])
    assert told == [piece for shot in pairwise(edges) for piece in pieces_at_once(shot, longest, tail)]


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 4))
def test_peaks_stand_out_of_the_mean_of_their_neighbours(scores, window):
    expected = []
    for t in range(window, len(scores) - window):
        around = scores[t - window : t] + scores[t + 1 : t + 1 + window]
        if scores[t] >= 15 and scores[t] >= 3 * (sum(around) / len(around)) + 1e-6:
            expected.append(t)
    found = run(Peaks(3, window, 15), [glance(content=score) for score in scores])
    assert set(expected) <= set(found)
    assert all(scores[t] >= 15 for t in found)


def test_a_small_change_in_stillness_stands_out_and_is_no_cut():
    assert run(Peaks(3, 1, 15), [glance(content=score) for score in (0, 0, 14, 0, 0, 15, 0, 0)]) == [5]


def pictures(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.uniform(0, 255, (9, 16, 3)) for _ in range(count)]


def shown(frames: Iterable[np.ndarray]) -> list[Glance]:
    return [Glance(0.0, frame.astype(np.uint8)) for frame in frames]


def test_a_dissolve_is_cut_in_its_middle():
    a, b = pictures(2)
    shares = np.concatenate([np.zeros(40), np.linspace(0, 1, 21), np.ones(40)])
    assert run(Dissolves(24, DissolveLimits()), shown((1 - share) * a + share * b for share in shares)) == [50]


def test_a_shot_that_is_the_mean_of_its_neighbours_is_no_dissolve():
    a, b = pictures(2)
    assert run(Dissolves(24, DissolveLimits()), shown([a] * 40 + [(a + b) / 2] * 14 + [b] * 40)) == []


@pytest.mark.parametrize(("off", "moved", "cuts"), [(13, 0, [3]), (15, 0, []), (15, 6, [3]), (23, 40, [])])
def test_a_dissolve_may_be_further_off_the_mean_where_its_pictures_move(off, moved, cuts):
    """A frame a second: one scale looks. Each step is half of the way, which is not too much."""
    way = 40 * np.random.default_rng(0).choice([-1, 1], (9, 16, 3))
    aside = np.sign(way) * np.tile([-off, off], 216).reshape(way.shape)
    a, middle, b = (120 + change for change in (-way, aside, way))
    assert run(Dissolves(1, DissolveLimits()), shown([b, a + moved, a, middle, b, b, a])) == cuts


def test_a_picture_that_rests_half_way_is_a_shot_between_two_others():
    a, b = pictures(2)
    shares = np.concatenate(
        [np.zeros(40), np.linspace(0, 0.5, 6), np.full(26, 0.5), np.linspace(0.5, 1, 6), np.ones(40)]
    )
    found = run(Dissolves(24, DissolveLimits()), shown((1 - share) * a + share * b for share in shares))
    assert not [cut for cut in found if 46 <= cut < 72]


def turned(places: Iterable[float], seed: int = 0) -> list[np.ndarray]:
    """What a camera sees of a wide view, so many columns of the thumbnail to the right."""
    wide = cv2.resize(np.random.default_rng(seed).uniform(0, 120, (5, 30, 3)), (640, 9), interpolation=cv2.INTER_CUBIC)
    return [wide[:, round(4 * place) : round(4 * place) + 64 : 4].clip(0, 120) for place in places]


def test_a_short_turn_between_two_still_views_is_no_dissolve():
    places = np.concatenate([np.full(40, 20), np.linspace(20, 24, 6), np.full(40, 24)])
    (left, right), change = (turned([place])[0] for place in (20, 24)), DissolveLimits().jump
    assert np.abs(left - right).mean() > change
    assert run(Dissolves(24, DissolveLimits()), shown(turned(places))) == []


def flashes(levels: Sequence[int], cuts: Sequence[int], num_frames: int = 6) -> list[int]:
    return run(WithoutFlashes(Told(cuts, 2), num_frames), [glance(level) for level in levels])


def test_a_picture_that_comes_back_was_lit_by_a_flash():
    assert flashes([50] * 10 + [200] * 3 + [50] * 10, [10, 13]) == []


def test_a_picture_that_stays_away_is_a_cut():
    assert flashes([50] * 10 + [200] * 13, [10]) == [10]
    assert flashes([50] * 10 + [200] * 8 + [50] * 10, [10, 18]) == [10, 18]


def test_a_flash_on_a_cut_costs_no_cut():
    assert flashes([50] * 10 + [250] * 2 + [130] * 20, [10, 12])[:1] == [10]


def test_another_picture_that_is_as_light_is_another_shot():
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 120, (9, 16, 3)).astype(np.uint8) for _ in range(2))
    lit = [Glance(0.0, picture) for picture in [a] * 10 + [a + 130] * 2 + [b] * 10]
    assert run(WithoutFlashes(Told([10, 12], 2), 6), lit)[:1] == [10]
    lit = [Glance(0.0, picture) for picture in [a] * 10 + [a + 130] * 2 + [a] * 10]
    assert run(WithoutFlashes(Told([10, 12], 2), 6), lit) == []


def test_both_edges_of_a_flash_that_dies_away_go():
    assert flashes([50] * 10 + [200] * 3 + [150, 100] + [50] * 10, [10, 15]) == []


def lit(frames: Sequence[np.ndarray]) -> list[Glance]:
    """Frames 10 to 13 are lit."""
    return shown(frame + 130 * (10 <= place < 14) for place, frame in enumerate(frames))


def test_a_flash_is_no_cut_while_the_camera_turns():
    moving = turned(0.8 * np.arange(40))
    assert run(WithoutFlashes(Told([10, 14], 2), 6), lit(moving)) == []


@pytest.mark.parametrize("cut", [10, 12, 14])
def test_a_cut_under_a_flash_is_kept_while_the_camera_turns(cut):
    moving, other = turned(np.arange(40) / 8), turned(np.arange(40) / 8, seed=1)
    assert run(WithoutFlashes(Told([10, 14], 2), 6), lit(moving[:cut] + other[cut:]))[:1] == [10]


def test_a_cut_right_after_a_flash_is_kept():
    assert flashes([50] * 10 + [200] * 2 + [50] * 2 + [120] * 20, [10, 12, 14]) == [14]


def test_a_flash_at_the_very_end_cannot_come_back():
    assert flashes([50] * 10 + [200] * 2, [10]) == [10]
