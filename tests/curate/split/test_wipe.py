"""Tests that wipes of every kind are cut, and that turning or dissolving pictures are not."""

from itertools import pairwise

import numpy as np
import pytest

from nemo_vfm.curate.split.finder import Glance
from nemo_vfm.curate.split.union import UnionSplit
from nemo_vfm.curate.split.wipe import sweep_of, wipe_strangeness
from tests.support.cut_score import CutScore, match
from tests.support.filmed_shots import DATA, filmed_corpus
from tests.support.shot_films import FPS, film

Y, X = np.mgrid[0:90, 0:160] / 90.0
ORDERS = {"right": X, "left": -X, "down": Y, "diagonal": X + Y, "iris": np.hypot(X - 0.9, Y - 0.5)}


def pictures() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [np.kron(random.uniform(0, 255, (9, 16, 3)), np.ones((10, 10, 1))) for _ in range(2)]


def wiped(order: np.ndarray, length: int = 20, softness: float = 0.0) -> list[np.ndarray]:
    """A wipe whose edge is as soft as this part of the way that it goes."""
    a, b = pictures()
    ranks = (order - order.min()) / np.ptp(order)
    times = np.concatenate([np.zeros(40), (np.arange(length) + 1) / (length + 1), np.full(40, 1.01)])
    parts = (np.clip((time * (1 + softness) - ranks) / (softness + 1e-9), 0, 1)[..., None] for time in times)
    return [(part * b + (1 - part) * a).astype(np.uint8) for part in parts]


@pytest.mark.parametrize("way", ORDERS)
def test_a_wipe_is_cut_in_its_middle_and_goes_as_a_whole(way):
    frames = wiped(ORDERS[way])
    (_, cut), _ = UnionSplit(trim_s=None).spans(frames, fps=24)
    assert 42 <= cut <= 58
    first, second = UnionSplit().spans(frames, fps=24)
    assert first[1] <= 40 and second[0] >= 60
    assert len(list(UnionSplit(wipes=False).spans(frames, fps=24))) == 1


@pytest.mark.parametrize(("length", "softness", "begin"), [(30, 0.1, 0), (30, 0.3, 0), (9, 0.0, 0), (9, 0.0, 1)])
def test_a_wipe_with_a_soft_edge_or_of_few_frames_is_cut_in_its_middle(length, softness, begin):
    (_, cut), _ = UnionSplit(trim_s=None).spans(wiped(X + Y, length, softness)[begin:], fps=24)
    assert abs(begin + cut - 40 - length / 2) <= length // 4


@pytest.mark.parametrize("seed", [4, 5])
def test_wipes_between_moving_shots_are_cut_and_nothing_else(seed):
    made = film(seed, ["wipe"] * 10)
    found = match([first for first, _ in UnionSplit(trim_s=None).spans(made.frames, fps=FPS) if first], made.events, 2)
    assert len(found) >= 9 and None not in found


@pytest.mark.parametrize(
    ("seed", "kinds"), [(101032, ["cut", "flash", "cut", "dissolve", "whip"]), (100600, ["whip"] * 3)]
)
def test_a_whip_pan_is_no_wipe_though_edges_cross_the_picture_in_order(seed, kinds):
    made = film(seed, kinds)
    found = match([first for first, _ in UnionSplit(trim_s=None).spans(made.frames, fps=FPS) if first], made.events, 2)
    assert [event.kind for event in found if event] == [kind for kind in kinds if kind in ("cut", "dissolve")]
    assert None not in found


def test_cells_that_change_in_no_order_are_no_wipe():
    order = np.kron(np.random.default_rng(0).permutation(144).reshape(9, 16), np.ones((10, 10)))
    assert list(UnionSplit().spans(wiped(order), fps=24)) == [(0, 100)]


def test_the_middle_of_a_wipe_is_no_mean_and_that_of_a_dissolve_is_one():
    a, b = pictures()
    middle = wiped(X)[50]
    shown = [Glance(0.0, picture.astype(np.uint8)) for picture in (a, middle, b, (a + b) / 2)]
    strangeness, changed = wipe_strangeness(shown[0], shown[1], shown[2])
    assert strangeness < 0.05 and 0.4 < changed < 0.6
    assert wipe_strangeness(shown[0], shown[3], shown[2])[0] > 0.45
    sweep = sweep_of([Glance(0.0, frame) for frame in wiped(X)[38:63]])
    assert sweep.order > 0.95 and sweep.explained > 0.95 and sweep.middle == pytest.approx(-0.5 / 24, abs=0.002)


@pytest.mark.parametrize("fps", [1.0, 3.0, 6.0])
def test_few_frames_a_second_are_no_error(fps):
    made = film(4, ["wipe", "cut", "wipe"])
    spans = list(UnionSplit(trim_s=None).spans(made.frames[:: round(FPS / fps)], fps=fps))
    assert spans[0][0] == 0 and all(one[1] == two[0] for one, two in pairwise(spans))
    shown = [Glance(0.0, frame) for frame in wiped(X, 5)[38:50]]
    assert sweep_of(shown[:: len(shown) // 3]).order == 0.0


def test_a_change_of_all_cells_at_once_is_no_sweep():
    a, b = pictures()
    mixed = [Glance(0.0, (a + (b - a) * part).astype(np.uint8)) for part in np.clip(np.linspace(-3, 4, 25), 0, 1)]
    assert sweep_of(mixed).explained < 0.4


@pytest.mark.soak
@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_transitions_of_real_footage_are_found():
    score = CutScore()
    for made in filmed_corpus(101):
        cuts = [first for first, _ in UnionSplit(trim_s=None).spans(made.frames, fps=FPS) if first]
        score.add(cuts, made.events)
    found = score.figures()
    assert found["wipe_recall"] >= 0.75 and found["dissolve_recall"] >= 0.85
    assert found["hard_f1"] >= 0.99
    assert score.share("flash") <= 0.05 and score.share("whip") <= 0.05
