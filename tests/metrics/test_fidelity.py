# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests PSNR and SSIM of videos with known errors against their closed forms."""

import pytest
import torch

from nemo_vfm.metrics.fidelity import BEST_DB, psnr, ssim


def video(seed=0, side=16):
    return torch.rand(2, 3, 2, side, side, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8


def test_psnr_of_a_constant_error_is_its_closed_form():
    x = video()
    torch.testing.assert_close(psnr(x + 0.1, x), torch.full((2,), 26.0206), atol=1e-3, rtol=0)
    assert psnr(x, x).tolist() == [BEST_DB, BEST_DB]


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
