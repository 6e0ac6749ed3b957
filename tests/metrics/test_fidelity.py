"""Tests PSNR and SSIM of videos with known errors against their closed forms."""

import itertools

import numpy as np
import pytest
import torch

from nemo_vfm.metrics.video_quality import BEST_DB, psnr, ssim


def video(seed=0, side=16):
    return torch.rand(2, 3, 2, side, side, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8


def test_psnr_of_a_constant_error_is_its_closed_form():
    x = video()
    torch.testing.assert_close(psnr(x + 0.1, x), torch.full((2,), 26.0206), atol=1e-3, rtol=0)
    assert psnr(x, x).tolist() == [BEST_DB, BEST_DB]


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_what_is_measured_of_a_video_does_not_depend_on_the_others(measure):
    x = video()
    made = x + torch.tensor([0.05, 0.3])[:, None, None, None, None] * torch.sign(video(seed=1))
    together = measure(made, x)
    assert together[0] > together[1]
    torch.testing.assert_close(together, torch.cat([measure(made[n : n + 1], x[n : n + 1]) for n in (0, 1)]))


def test_pixels_beyond_the_range_count_as_its_ends():
    white = torch.ones(1, 3, 1, 16, 16)
    assert float(psnr(white * 5, white)) == BEST_DB


def test_ssim_is_one_for_equal_videos_and_of_flat_ones_only_a_matter_of_means():
    x = video()
    torch.testing.assert_close(ssim(x, x), torch.ones(2))
    flat = torch.zeros(1, 3, 1, 16, 16)
    c1, a, b = 0.01**2, 0.75, 0.6
    expected = (2 * a * b + c1) / (a * a + b * b + c1)
    torch.testing.assert_close(ssim(flat + 0.5, flat + 0.2), torch.tensor([expected]), atol=1e-5, rtol=0)


def test_ssim_sees_structure_that_psnr_does_not():
    x = video(side=32)
    noise = torch.sign(torch.randn(x.shape, generator=torch.Generator().manual_seed(3))) * 0.1
    assert (psnr(x + noise, x) - psnr(x + 0.1, x)).abs().max() < 1e-3
    assert (ssim(x + noise, x) < ssim(x + 0.1, x) - 0.01).all()


def test_frames_smaller_than_the_window_are_a_sentence():
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(video(side=8), video(side=8))


def test_ssim_is_the_same_of_mirrored_videos():
    x = video(side=24)
    made = x + 0.2 * torch.linspace(0, 1, 24)  # worse on one side
    torch.testing.assert_close(ssim(made.flip(-1), x.flip(-1)), ssim(made, x))
    torch.testing.assert_close(ssim(made.mT, x.mT), ssim(made, x))


def test_ssim_is_its_definition_window_by_window():
    x = video(side=14)[:1, :, :1]
    made = (x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5))).clamp(-1, 1)
    line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    weight = np.outer(line, line) / line.sum() ** 2
    found = []
    for channel, top, left in itertools.product(range(3), range(4), range(4)):
        place = (0, channel, 0, slice(top, top + 11), slice(left, left + 11))
        a, b = (((one[place] + 1) / 2).double().numpy() for one in (made, x))
        mean_a, mean_b = (weight * a).sum(), (weight * b).sum()
        var_a, var_b = (weight * (a - mean_a) ** 2).sum(), (weight * (b - mean_b) ** 2).sum()
        both = (weight * (a - mean_a) * (b - mean_b)).sum()
        found.append((2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)
                     / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4)))  # fmt: skip
    assert float(ssim(made, x)) == pytest.approx(np.mean(found), abs=1e-5)
