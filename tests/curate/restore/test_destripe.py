# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Clips with stripes lose them, clips without are not touched, and a clip's frames are the same in any pieces."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.curate.restore.letterbox import Letterbox
from nemo_vfm.curate.restore.luma import luma
from nemo_vfm.curate.stage import Restoration, Restorer
from nemo_vfm.data.decode import open_video
from nemo_vfm.restore.stripe_excess import stripe_excess_db
from tests.support.films import pan
from tests.support.striped import leaves, psnr_db, with_stripes

VIDEOS = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"


@pytest.fixture(scope="module")
def clean():
    wide = leaves(0, 256)[:144].round().astype(np.uint8)
    grey = np.stack([np.roll(wide, 3 * index, axis=1)[:, :192] for index in range(8)])
    return np.stack([grey, np.clip(grey + 20, 0, 255).astype(np.uint8), grey // 2 + 40], axis=-1)


@pytest.mark.parametrize("changes", [{}, {"mode": "static"}, {"channels": "rgb"}])
@pytest.mark.parametrize("theta_deg", [0, 90])
def test_stripes_go(clean, changes, theta_deg):
    striped = with_stripes(clean, theta_deg=theta_deg)
    found = Destripe(iterations=4, **changes).look(striped)
    assert isinstance(found, Restoration)
    assert psnr_db(found.apply(striped), clean) > psnr_db(striped, clean) + 3
    facts = found.facts()
    assert set(facts) == set(Destripe().columns())
    assert facts["stripe_theta_deg"] == theta_deg
    assert facts["stripe_excess_db"] > 10 > 5 > facts["stripe_excess_after_db"]


def test_clips_without_stripes_are_not_touched(clean):
    assert Destripe().look(clean) is None
    assert Destripe().look(pan(3)[:8]) is None
    assert Destripe(min_excess_db=-100.0, iterations=1).look(clean) is not None


def test_stripes_of_another_direction_than_the_one_named_stay(clean):
    striped = with_stripes(clean, theta_deg=90)
    assert Destripe(theta_deg=0).look(striped) is None
    assert Destripe(theta_deg=90).look(striped) is not None
    assert Destripe(theta_deg=180.0).look(with_stripes(clean, theta_deg=0)) is not None


@pytest.mark.parametrize("mode", ["per_frame", "static"])
def test_frames_are_the_same_in_any_pieces(clean, mode):
    striped = with_stripes(clean, theta_deg=0)
    found = Destripe(mode=mode, iterations=3).look(striped)
    whole = found.apply(striped)
    assert whole.dtype == np.uint8 and whole.shape == striped.shape
    assert np.array_equal(whole, np.concatenate([found.apply(striped[:3]), found.apply(striped[3:])]))


def test_the_number_of_threads_changes_no_bit_and_stays_as_it_was(clean):
    before, found = torch.get_num_threads(), []
    striped = with_stripes(clean[:1], theta_deg=0)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(Destripe(iterations=3).look(striped).apply(striped))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


def test_it_can_be_sent_to_another_process():
    assert vars(pickle.loads(pickle.dumps(Destripe(theta_deg=12.5)))) == vars(Destripe(theta_deg=12.5))
    assert isinstance(Destripe(), Restorer) and isinstance(Letterbox(), Restorer)


@pytest.mark.parametrize(
    "wrong", [{"theta_deg": 181}, {"wedge_deg": 0}, {"kmin": 0}, {"iterations": 0}, {"descent": 0.4}]
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Destripe(**wrong)


@pytest.mark.skipif(not VIDEOS.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_every_real_clip_passes_untouched_and_is_found_with_stripes_of_sigma_5():
    seen = 0
    for path in sorted(VIDEOS.iterdir()):
        frames = eight_of(path)
        if frames is None or min(frames.shape[1:3]) < 64:
            continue
        seen += 1
        assert stripe_excess_db(luma(frames)).max() < Destripe().min_excess_db, path.name
        box = Letterbox().look(frames)
        cropped = frames if box is None else box.apply(frames)
        assert Destripe().look(cropped) is None, path.name
        striped = with_stripes(luma(cropped), theta_deg=90 * (seen % 2), sigma=5.0)
        assert stripe_excess_db(striped)[90 * (seen % 2)] > Destripe().min_excess_db, path.name
    assert seen >= 8


def eight_of(path):
    """What a restorer is shown of a whole file."""
    try:
        with open_video(path, "pyav") as reader:
            count = reader.info().num_frames
            return reader.read(sorted({int(number) for number in np.linspace(0, count - 1, 8).round()}))
    except DataError:
        return None
