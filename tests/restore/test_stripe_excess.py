"""Tests that stripes are found in every direction, and that nothing else is."""

import numpy as np
import pytest

from nemo_vfm.restore.stripe_excess import StripeExcess, _line
from tests.support.films import pan
from tests.support.striped import leaves, with_stripes


@pytest.fixture(scope="module")
def pictures():
    return np.stack([leaves(seed).round().astype(np.uint8) for seed in range(4)])


@pytest.mark.parametrize("theta_deg", [0, 1, 37, 45, 90, 120, 179])
def test_the_direction_is_found_to_a_degree(pictures, theta_deg):
    excess = StripeExcess.of(with_stripes(pictures, theta_deg=theta_deg)).whole_db()
    assert min((excess.argmax() - theta_deg) % 180, (theta_deg - excess.argmax()) % 180) <= 1
    assert excess.max() > 9


@pytest.mark.parametrize("theta_deg", [0, 90])
def test_stripes_of_sigma_7_are_found_among_nothing_but_edges(pictures, theta_deg):
    assert StripeExcess.of(with_stripes(pictures, theta_deg=theta_deg, sigma=7.0)).whole_db()[theta_deg] > 6


def test_pictures_without_stripes_have_no_excess(pictures):
    assert StripeExcess.of(pictures).whole_db().max() < 4
    assert StripeExcess.of(np.asarray(pan(3)).mean(-1)[:8]).whole_db().max() < 4


def test_a_large_edge_is_no_stripe(pictures):
    framed = pictures.copy()
    framed[:, :40], framed[:, 216:] = 0, 0  # a letterbox that nobody cut off
    framed[:, 40:216, 100:104] = 255  # a pole
    assert StripeExcess.of(framed).whole_db().max() < 4


def test_the_blocks_of_a_coder_are_no_stripes(pictures):
    blocks = pictures + 4 * (np.arange(256) % 8 == 0)
    assert StripeExcess.of(np.clip(blocks, 0, 255)).whole_db().max() < 4


def test_flat_and_tiny_pictures_have_none():
    assert StripeExcess.of(np.full((8, 100, 130), 77, np.uint8)).whole_db().max() == pytest.approx(0, abs=1e-3)
    assert not StripeExcess.of(np.random.default_rng(0).random((1, 40, 300)).astype(np.float32)).whole_db().any()


def test_any_size_can_be_looked_at():
    for size in ((64, 64), (65, 129), (127, 300), (131, 257)):
        noise = np.random.default_rng(0).integers(0, 255, (2, *size)).astype(np.uint8)
        assert StripeExcess.of(with_stripes(noise // 8, theta_deg=90)).whole_db()[90] > 12


@pytest.mark.parametrize("offset", [-2, 0, 3])
def test_a_line_beside_another_has_its_distance_in_every_direction(offset):
    y_AR, x_AR = _line(256, offset)
    y_AR = np.where(y_AR > 128, y_AR - 256, y_AR)
    theta_A1 = np.radians(np.arange(180))[:, None]
    away = np.abs(y_AR * np.cos(theta_A1) + x_AR * np.sin(theta_A1))  # the half plane holds each line or its mirror
    assert np.abs(away - abs(offset)).max() <= 1
