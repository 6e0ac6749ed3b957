"""Tests small untrained autoencoders: sizes, causality, decoding in pieces and tiles."""

import pytest
import torch
from torch import nn

from nemo_vfm.models.autoencoder import CausalAutoencoder, split
from nemo_vfm.models.trained_autoencoder import in_pieces, in_tiles

KINDS = [
    {"space": 8, "time": 4}, {"space": 8, "time": 8}, {"space": 16, "time": 8}, {"space": 8, "time": 4, "width": 32,
     "widest": 32, "attention": "space_time"}, {"space": 4, "time": 1, "wavelet_time": 0},
]  # fmt: skip


def autoencoder(**settings) -> CausalAutoencoder:
    """One whose weights are all drawn: as it begins, most blocks give nothing and would hide a mistake."""
    torch.manual_seed(0)
    model = CausalAutoencoder(**{"latent_channels": 4, "width": 8, "widest": 16, "blocks": 1, **settings})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.eval()


def video(frames, side=32, width=None, seed=1):
    shape = (1, 3, frames, side, width or side)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def assert_same(one, other):
    """Equal to 1e-5 of the largest number: the order of summation is the kernels' affair."""
    assert one.shape == other.shape
    assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_sizes_are_as_declared_and_an_image_is_a_video_of_one_frame(kind):
    model = autoencoder(**kind)
    for frames in (1, 1 + 2 * kind["time"]):
        latents = model.encode(video(frames))
        assert tuple(latents.shape[1:]) == model.latent_shape(frames, 32, 32)
        assert model.decode(latents).shape == video(frames).shape


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_no_latent_hangs_on_a_later_frame_and_no_frame_on_a_later_latent(kind):
    model, time = autoencoder(**kind), kind["time"]
    x = video(1 + 3 * time)
    latents = model.encode(x)
    for keep in range(1, latents.shape[2]):
        changed = x.clone()
        changed[:, :, 1 + (keep - 1) * time :] = video(x.shape[2], seed=2)[:, :, 1 + (keep - 1) * time :]
        moved = (model.encode(changed) - latents).abs().amax((0, 1, 3, 4))
        assert moved[:keep].max() == 0 and moved[keep:].min() > 0
        other = latents.clone()
        other[:, :, keep:] += 1
        moved = (model.decode(other) - model.decode(latents)).abs().amax((0, 1, 3, 4))
        assert moved[: 1 + (keep - 1) * time].max() == 0 and moved[1 + (keep - 1) * time :].min() > 0
    torch.testing.assert_close(model.encode(x[:, :, :1]), latents[:, :, :1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@torch.no_grad()
def test_a_long_video_in_pieces_gives_what_it_gives_in_one(kind, count):
    model = autoencoder(**kind)
    x = video(1 + 6 * kind["time"], side=16)
    whole = model.encode(x)
    latents = in_pieces(model.encode, x, first=1, step=model.time, count=count)
    assert_same(latents, whole)
    pixels = in_pieces(model.decode, whole, first=1, step=1, count=count)
    assert_same(pixels, model.decode(whole))


@torch.no_grad()
def test_pieces_without_a_past_differ_so_the_comparison_can_see_it():
    model = autoencoder(space=8, time=4)
    x = video(13)
    alone = torch.cat([model.encode(x[:, :, :5]), model.encode(x[:, :, 4:])[:, :, 1:]], dim=2)
    assert (alone - model.encode(x)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[4]], ids=str)
@torch.no_grad()
def test_frames_in_tiles_give_what_they_give_whole_and_a_smaller_halo_does_not(kind):
    model = autoencoder(**kind)
    x, halo = video(1, side=16 * 14, width=16 * 11), model.reach()
    whole = model.encode(x)
    tiles = in_tiles(model.encode, x, 4, halo, inside=model.space, outside=1)
    assert_same(tiles, whole)
    pixels = in_tiles(model.decode, whole, 4, halo, inside=1, outside=model.space)
    assert_same(pixels, model.decode(whole))
    cut = in_tiles(model.encode, x, 4, 0, inside=model.space, outside=1)
    assert (cut - whole).abs().max() > 1e-3


def test_it_begins_as_something_that_gives_a_still_grey_picture_back():
    torch.manual_seed(0)
    model = CausalAutoencoder(latent_channels=16, space=8, time=4, width=64, widest=128, blocks=1)
    grey = torch.full((1, 3, 5, 16, 16), 0.5)
    made = split(model(grey), grey)[0]
    assert (made - grey).abs().mean() < 0.25


def test_noise_is_a_function_of_each_samples_seed_alone():
    model = autoencoder(space=8, time=4, variational=True)
    x = video(5).repeat(2, 1, 1, 1, 1)
    both, alone = model(x, torch.tensor([3, 4])), model(x[:1], torch.tensor([4]))
    torch.testing.assert_close(both[1], alone[0], atol=1e-5, rtol=1e-5)
    assert (both[0] - both[1]).abs().max() > 1e-4
    assert torch.equal(model(x), model(x))
    made, mean, logvar = split(both, x)
    assert made.shape == x.shape and mean.shape == logvar.shape == (2, 4 * 2 * 4 * 4) and logvar.abs().max() > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": 12}, "space must be a power of two, got 12"),
        ({"space": 2}, "wavelet_space 2"),
        ({"time": 2}, "wavelet_time 2"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"attention": "space", "width": 8, "widest": 8}, "multiple of 32"),
    ],
)
def test_sizes_that_cannot_be_are_a_sentence(settings, words):
    with pytest.raises(ValueError, match=words):
        CausalAutoencoder(**settings)


@pytest.mark.parametrize(
    ("size", "words"), [((8, 32, 32), "use 5 or 9"), ((9, 30, 32), "height 30"), ((9, 32, 33), "width 33")]
)
def test_a_video_that_does_not_fit_is_told_what_does(size, words):
    with pytest.raises(ValueError, match=words):
        autoencoder(space=8, time=4).latent_shape(*size)
