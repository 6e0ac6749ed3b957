"""Tests where a histogram of likenesses is cut between copies and strangers, and what is said without a valley."""

import numpy as np
import pytest

from nemo_vfm.dedup.epsilon import GRID, Proposal, curve, histogram, propose

RANDOM = np.random.default_rng(0)
STRANGERS = np.clip(RANDOM.normal(0.6, 0.08, 2000), 0, 1)
COPIES = 1 - np.abs(RANDOM.normal(0, 0.01, 200))


def test_between_copies_and_strangers_lies_a_valley():
    found = propose([*STRANGERS, *COPIES], 0.01)
    assert found.how == "valley"
    assert 0.03 < found.epsilon < 0.2
    assert (1 - found.epsilon < STRANGERS).mean() < 0.001
    assert (1 - found.epsilon < COPIES).all()


def test_a_valley_need_not_be_empty():
    between = RANDOM.uniform(0.8, 0.97, 40)
    assert propose([*STRANGERS, *between, *COPIES], 0.01).how == "valley"


def test_a_few_stray_clips_are_no_hill():
    assert propose([*STRANGERS, 0.999, 0.998], 0.01).how != "valley"


def test_a_slope_has_a_knee():
    slope = 1 - np.clip(RANDOM.exponential(0.25, 3000) ** 0.7, 0, 1)
    found = propose([*np.minimum(slope, 0.8), *np.linspace(0.8, 0.9, 40)], 0.01)
    assert found.how == "knee"
    assert found.epsilon in GRID


@pytest.mark.parametrize("likenesses", [[], [1.0] * 10, [0.2] * 1000])
def test_where_nothing_can_be_told_the_given_one_stands(likenesses):
    assert propose(likenesses, 0.07) == Proposal(0.07, "given")


def test_every_clip_is_in_the_histogram_once():
    shown = histogram([-0.5, 0.0, 0.005, 1.0])
    assert (sum(shown["counts"]), shown["counts"][0], shown["counts"][-1], len(shown["edges"])) == (4, 3, 1, 101)


def test_the_curve_says_what_each_epsilon_removes():
    values = np.array([0.5, 0.95, 0.995, 1.0])
    shown = {point["epsilon"]: point["removed_percent"] for point in curve(lambda above: (values > above).mean())}
    assert (shown[0.01], shown[0.075], shown[0.5]) == (50.0, 75.0, 75.0)
    assert list(shown) == sorted(shown)
