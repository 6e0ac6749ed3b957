"""Tests that striped clips lose their stripes, clean clips stay untouched, and pieces give the same frames."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.curate.record.footage import luma
from nemo_vfm.curate.record.stage import Restoration, Restorer
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.restore.stripe_excess import StripeExcess
from nemo_vfm.restore.stripes import refine_deg
from tests.support.films import pan
from tests.support.striped import half_scratched, leaves, psnr_db, with_stripes

VIDEOS = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"


@pytest.fixture(scope="module")
def clean():
    wide = leaves(0, 256)[:144].round().astype(np.uint8)
    grey = np.stack([np.roll(wide, 3 * index, axis=1)[:, :192] for index in range(8)])
    return np.stack([grey, np.clip(grey + 20, 0, 255).astype(np.uint8), grey // 2 + 40], axis=-1)


@pytest.mark.parametrize("changes", [{}, {"mode": "static"}, {"mode": "per_frame", "channels": "rgb"}])
@pytest.mark.parametrize("theta_deg", [0, 90])
def test_stripes_go(clean, changes, theta_deg):
    striped = with_stripes(clean, theta_deg=theta_deg)
    found = Destripe(**changes).look(striped)
    assert isinstance(found, Restoration)
    assert psnr_db(found.apply(striped), clean) > psnr_db(striped, clean) + 3
    facts = found.facts()
    assert set(facts) == set(Destripe().columns()) - {"scratches"}
    assert facts["stripe_theta_deg"] == theta_deg
    assert facts["stripe_excess_db"] > 10 > 5 > facts["stripe_excess_after_db"]


def test_clips_without_stripes_are_not_touched(clean):
    assert Destripe().look(clean) is None
    assert Destripe().look(pan(3)[:8]) is None
    assert Destripe(min_excess_db=-100.0).look(clean) is not None


def test_stripes_of_another_direction_than_the_one_named_stay(clean):
    striped = with_stripes(clean, theta_deg=90)
    assert Destripe(theta_deg=0).look(striped) is None
    assert Destripe(theta_deg=90).look(striped) is not None
    assert Destripe(theta_deg=180.0).look(with_stripes(clean, theta_deg=0)) is not None


@pytest.mark.parametrize("mode", ["per_frame", "static"])
def test_frames_are_the_same_in_any_pieces(clean, mode):
    striped = with_stripes(clean, theta_deg=0)
    found = Destripe(mode=mode).look(striped)
    whole = found.apply(striped)
    assert whole.dtype == np.uint8 and whole.shape == striped.shape
    assert np.array_equal(whole, np.concatenate([found.apply(striped[:3]), found.apply(striped[3:])]))


def test_stripes_that_stay_are_subtracted_from_all_frames_alike_and_those_that_move_from_each():
    clean = np.stack([leaves(0).round().astype(np.uint8)] * 8)[..., None].repeat(3, -1)
    moving = np.stack([with_stripes(frame[None], theta_deg=0, seed=seed)[0] for seed, frame in enumerate(clean)])
    for striped, alike in ((with_stripes(clean, theta_deg=0), True), (moving, False)):
        found = Destripe().look(striped)
        taken = striped.astype(int) - found.apply(striped)
        inside = (striped.min(0) > 60) & (striped.max(0) < 195)
        assert np.all(np.ptp(taken, axis=0)[inside] == 0) == alike
        assert psnr_db(found.apply(striped), clean) > psnr_db(striped, clean) + 6


@pytest.mark.parametrize("still", [True, False])
def test_scratches_of_half_the_height_are_found_and_go(still):
    gains = []
    for seed in range(3):
        clean, scratched = half_scratched(seed, (-1) ** seed * 30, still=still)
        found = Destripe().look(scratched)
        assert found.facts()["scratches"] >= 1
        gains.append(psnr_db(found.apply(scratched), clean) - psnr_db(scratched, clean))
        assert Destripe().look(clean) is None
    assert min(gains) > 0 and np.mean(gains) > 3


@pytest.mark.parametrize("theta_deg", [0, 1, 90, 37.4])
def test_the_direction_is_refined_until_stripes_fit_from_end_to_end(theta_deg):
    clean = np.stack([np.roll(leaves(5), 3 * index, axis=1) for index in range(2)]).round().astype(np.uint8)
    striped = with_stripes(clean, theta_deg=theta_deg)
    for near in (-2, -1, 0, 1):
        assert refine_deg(striped, (theta_deg + near) % 180) == pytest.approx(theta_deg, abs=0.13)


def test_what_is_found_by_itself_gains_as_much_as_what_is_told():
    for seed in (5, 6):  # taken for stripes of 1 degree at first
        clean = np.stack([leaves(seed).round().astype(np.uint8)])[..., None].repeat(3, -1)
        striped = with_stripes(clean, theta_deg=0, seed=1000 + seed)
        assert psnr_db(Destripe().look(striped).apply(striped), clean) > psnr_db(striped, clean) + 7.5


@pytest.mark.parametrize(
    ("mode", "bar"), [pytest.param("per_frame", 0, marks=pytest.mark.slow), ("static", 0), ("static", 255)]
)
def test_frames_in_8_bits_gain_as_much_and_bars_stay_black_or_white(mode, bar):
    grey = np.stack([np.roll(leaves(1), 3 * index, axis=1) for index in range(8)])
    grey[:, :40], grey[:, 216:] = bar, bar
    barred = grey.round().astype(np.uint8)[..., None].repeat(3, -1)
    striped = with_stripes(barred, theta_deg=0)
    mended = Destripe(mode=mode).look(striped).apply(striped)
    assert psnr_db(mended, barred) > psnr_db(striped, barred) + 7
    assert abs(mended[:, :36].mean() - bar) < 0.5 * abs(striped[:, :36].mean() - bar)


def test_stripes_of_half_the_picture_are_found_and_go(clean):
    striped = clean.copy()
    striped[:, :72] = with_stripes(clean, theta_deg=0)[:, :72]
    found = Destripe().look(striped)
    assert found.facts()["stripe_theta_deg"] == 0
    assert psnr_db(found.apply(striped), clean) > psnr_db(striped, clean) + 2


def test_a_pole_is_no_scratch(clean):
    scene = clean.copy()
    texture = np.random.default_rng(0).integers(160, 250, (144, 2, 1))
    scene[:, :, 90:92] = texture  # it hides what is behind it
    assert Destripe().look(scene) is None
    moving = clean.copy()
    for index, frame in enumerate(moving):  # a line of the scene moves with it
        frame[:100, 20 + 3 * index] //= 2
    assert Destripe().look(moving) is None


def test_the_number_of_threads_changes_no_bit_and_stays_as_it_was(clean):
    before, found = torch.get_num_threads(), []
    striped = with_stripes(clean[:1], theta_deg=0)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(Destripe(mode="per_frame").look(striped).apply(striped))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


def test_it_can_be_sent_to_another_process():
    assert vars(pickle.loads(pickle.dumps(Destripe(theta_deg=12.5)))) == vars(Destripe(theta_deg=12.5))
    assert isinstance(Destripe(), Restorer) and isinstance(Letterbox(), Restorer)


@pytest.mark.parametrize("wrong", [{"theta_deg": 181}, {"wedge_deg": 0}, {"kmin": 0}, {"mode": "moving"}])
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Destripe(**wrong)


@pytest.mark.slow  # restores every shared video
@pytest.mark.skipif(not VIDEOS.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_every_real_clip_passes_untouched_and_is_found_with_stripes_of_sigma_5():
    seen = 0
    for path in sorted(VIDEOS.iterdir()):
        frames = eight_of(path)
        if frames is None or min(frames.shape[1:3]) < 64:
            continue
        seen += 1
        assert StripeExcess.of(luma(frames)).whole_db().max() < Destripe().min_excess_db, path.name
        box = Letterbox().look(frames)
        cropped = frames if box is None else box.apply(frames)
        assert Destripe().look(cropped) is None, path.name
        striped = with_stripes(luma(cropped), theta_deg=90 * (seen % 2), sigma=5.0)
        assert StripeExcess.of(striped).whole_db()[90 * (seen % 2)] > Destripe().min_excess_db, path.name
    assert seen >= 8


def eight_of(path):
    """What a restorer is shown of a whole file."""
    try:
        with open_video(path, "pyav") as reader:
            count = reader.info().num_frames
            return reader.read(sorted({int(number) for number in np.linspace(0, count - 1, 8).round()}))
    except DataError:
        return None
