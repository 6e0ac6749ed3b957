"""Tests that the wavelet codec is lossless by default, preserves energy, is causal and refuses misfitting sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.types.encoders import Codec
from nemo_vfm.models.codec import WaveletCodec

GAINS = st.floats(0.1, 10.0)


def video(seed, num_frames, height, width, batch=1):
    return torch.rand(batch, 3, num_frames, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@settings(max_examples=60)
@given(
    basis=st.sampled_from(["orthonormal", "mean"]),
    levels_space=st.integers(0, 3), levels_time=st.integers(0, 3), gain=GAINS, detail_gain=GAINS, motion_gain=GAINS,
    first_frame_gain=GAINS, k=st.integers(0, 3), rows=st.integers(1, 3), columns=st.integers(1, 3),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_decoding_what_was_encoded_gives_the_pixels_back_and_shapes_and_energy_are_as_declared(
    basis, levels_space, levels_time, gain, detail_gain, motion_gain, first_frame_gain, k, rows, columns, seed
):
    codec = WaveletCodec(
        levels_space=levels_space, levels_time=levels_time, basis=basis, gain=gain, detail_gain=detail_gain,
        motion_gain=motion_gain, first_frame_gain=first_frame_gain,
    )  # fmt: skip
    side, frames = 2**levels_space, 2**levels_time
    x = video(seed, 1 + k * frames, rows * side, columns * side)
    latents = codec.encode(x)
    assert tuple(latents.shape[1:]) == codec.latent_shape(*x.shape[2:]) == (3 * side**2 * frames, 1 + k, rows, columns)
    assert (codec.decode(latents) - x).abs().max() <= 1e-6
    first, others = codec.scales().unbind(1)
    coefficients = torch.cat(
        [latents[:, :, :1] / first.view(-1, 1, 1, 1), latents[:, :, 1:] / others.view(-1, 1, 1, 1)], 2
    )
    torch.testing.assert_close(coefficients.square().sum(), x.square().sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("basis", ["orthonormal", "mean"])
def test_the_basis_is_orthonormal_once_scales_are_divided_out(basis):
    codec = WaveletCodec(levels_space=1, levels_time=1, basis=basis, detail_gain=3.0, motion_gain=0.7)
    units = torch.eye(3 * 3 * 2 * 2).reshape(-1, 3, 3, 2, 2)
    rows = (codec.encode(units) / codec.scales()[None, :, :, None, None]).flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(36), atol=1e-6, rtol=0)


@settings(max_examples=30)
@given(
    levels_space=st.integers(0, 3), levels_time=st.integers(0, 3), gain=GAINS, detail_gain=GAINS,
    k=st.integers(0, 2), rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_overlapping_wavelets_give_the_pixels_back_and_nearly_keep_their_energy(
    levels_space, levels_time, gain, detail_gain, k, rows, columns, seed
):
    codec = WaveletCodec(wavelet="cdf97", levels_space=levels_space, levels_time=levels_time, gain=gain,
                         detail_gain=detail_gain)  # fmt: skip
    side, frames = 2**levels_space, 2**levels_time
    x = video(seed, 1 + k * frames, rows * side, columns * side)
    latents = codec.encode(x)
    assert tuple(latents.shape[1:]) == codec.latent_shape(*x.shape[2:])
    assert (codec.decode(latents) - x).abs().max() <= 1e-5
    scales = torch.cat([codec.scales()[:, :1], codec.scales()[:, 1:].expand(-1, k)], 1)
    energy = (latents / scales[None, :, :, None, None]).square().sum()
    assert 0.6 < float(energy / x.square().sum()) < 1.7


def test_a_straight_slope_has_no_details_in_the_middle_of_overlapping_wavelets_and_does_in_haars():
    slope = torch.linspace(-1, 1, 32).expand(1, 3, 1, 32, 32)
    for wavelet, flat in (("cdf97", True), ("haar", False)):
        details = WaveletCodec(wavelet=wavelet, levels_space=1).encode(slope)[0, 3:, 0, 4:-4, 4:-4]
        assert (details.abs().max() < 1e-5) == flat


def test_an_error_in_one_latent_position_ends_at_haars_border_and_fades_beyond_that_of_overlapping_wavelets():
    for wavelet, reach in (("haar", 0.0), ("cdf97", 0.05)):
        codec = WaveletCodec(wavelet=wavelet, levels_space=3)
        latents = torch.zeros(1, *codec.latent_shape(1, 24, 24))
        latents[0, :3, 0, 1, 1] = 1.0
        picture = codec.decode(latents)[0, 0, 0].abs()
        assert (picture[7, 8:16].mean() > reach * picture[8, 8:16].mean()) == (wavelet == "cdf97")


@pytest.mark.parametrize("wavelet", ["haar", "cdf97"])
def test_levels_that_are_left_out_take_their_channels_along_and_leave_the_coarse_picture(wavelet):
    whole, less = (WaveletCodec(wavelet=wavelet, levels_space=3, levels_time=1, left_out=n) for n in (0, 1))
    x = video(3, 3, 16, 16)
    assert less.latent_shape(3, 16, 16) == (96, 2, 2, 2) and len(less.scales()) == 96
    torch.testing.assert_close(less.encode(x), whole.encode(x)[:, :96])
    coarse = less.decode(less.encode(x))
    torch.testing.assert_close(less.encode(coarse), less.encode(x), atol=1e-5, rtol=0)
    if wavelet == "haar":
        boxes = x.unflatten(3, (8, 2)).unflatten(5, (8, 2)).mean((4, 6))
        torch.testing.assert_close(coarse, boxes.repeat_interleave(2, 3).repeat_interleave(2, 4))


def test_without_further_gains_the_latents_have_the_energy_of_the_pixels():
    x = video(2, 9, 8, 8)
    latents = WaveletCodec(levels_space=2, levels_time=2, gain=1.0).encode(x)
    torch.testing.assert_close(latents.square().sum(), x.square().sum())
    quarter = WaveletCodec(levels_space=2, levels_time=2, gain=0.25)
    noise = quarter.decode(quarter.encode(x) + torch.full_like(latents, 0.1)) - x
    torch.testing.assert_close(noise.square().mean(), torch.tensor(0.4**2))


def test_the_first_frame_has_a_latent_of_its_own_and_later_frames_never_reach_back():
    codec = WaveletCodec(levels_space=1, levels_time=2)
    x = video(0, 9, 4, 4)
    torch.testing.assert_close(codec.encode(x)[:, :, :1], codec.encode(x[:, :, :1]))
    changed = x.clone()
    changed[:, :, 5:] = 0
    torch.testing.assert_close(codec.encode(changed)[:, :, :2], codec.encode(x)[:, :, :2])
    assert not torch.allclose(codec.encode(changed)[:, :, 2], codec.encode(x)[:, :, 2])


def test_the_lowest_band_of_a_flat_video_is_its_value_and_all_others_are_zero():
    latents = WaveletCodec(levels_space=2, levels_time=1, basis="mean", gain=1.0).encode(
        torch.full((1, 3, 3, 8, 8), 0.5)
    )
    torch.testing.assert_close(latents[:, :3], torch.full_like(latents[:, :3], 0.5))
    assert not latents[:, 3:].any()


def test_gains_scale_their_own_bands_only():
    x = video(1, 3, 4, 4)
    plain, detail, motion, first = (
        WaveletCodec(levels_space=1, levels_time=1, **{"detail_gain": 1.0, "motion_gain": 1.0} | changes).encode(x)
        for changes in ({}, {"detail_gain": 4.0}, {"motion_gain": 4.0}, {"first_frame_gain": 4.0})
    )
    still_flat, moving_flat = slice(0, 3), slice(3, 6)
    torch.testing.assert_close(detail[:, still_flat], plain[:, still_flat])
    torch.testing.assert_close(detail[:, 6:], 4 * plain[:, 6:])
    torch.testing.assert_close(motion[:, still_flat], plain[:, still_flat])
    torch.testing.assert_close(motion[:, moving_flat], 4 * plain[:, moving_flat])
    torch.testing.assert_close(first[:, :, 0], 4 * plain[:, :, 0])
    torch.testing.assert_close(first[:, :, 1:], plain[:, :, 1:])


def test_encoding_ignores_autocast():
    codec, x = WaveletCodec(levels_space=2), video(0, 1, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        latents = codec.encode(x)
    torch.testing.assert_close(latents, codec.encode(x), rtol=0, atol=0)


@pytest.mark.parametrize(("size", "words"), [
    ((4, 8, 8), "4 frames do not fit.*1 \\+ k \\* 4 frames; use 1 or 5"),
    ((5, 10, 8), "height 10 does not fit.*multiples of 4; use 8 or 12"),
    ((5, 8, 3), "width 3 does not fit.*multiples of 4; use 4 or 8"),
    ((0, 8, 8), "0 frames do not fit"),
])  # fmt: skip
def test_a_size_that_does_not_fit_is_answered_with_sizes_that_do(size, words):
    with pytest.raises(ValueError, match=words):
        WaveletCodec(levels_space=2, levels_time=2).latent_shape(*size)


@pytest.mark.parametrize(
    "changes",
    [
        {"basis": "dct"},
        {"levels_time": -1},
        {"wavelet": "db4"},
        {"left_out": 3},
        {"gain": 0.0},
        {"detail_gain": float("inf")},
    ],
)
def test_settings_that_cannot_be_undone_are_refused(changes):
    with pytest.raises(ValueError, match="must"):
        WaveletCodec(**changes)


def test_the_fingerprint_names_every_setting():
    assert isinstance(WaveletCodec(), Codec)
    variants = (
        {},
        {"basis": "mean"},
        {"first_frame_gain": 2.0},
        {"levels_space": 1},
        {"levels_time": 1},
        {"gain": 2.0},
        {"detail_gain": 3.0},
        {"motion_gain": 3.0},
        {"wavelet": "cdf97"},
        {"left_out": 1},
    )
    assert len({WaveletCodec(**changes).fingerprint() for changes in variants}) == len(variants)
