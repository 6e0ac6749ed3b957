"""Tests what destriping gains and leaves alone, and that it avoids the mistakes of the public code."""

import numpy as np
import pytest
import torch

from nemo_vfm.restore.stripes import known_frequencies, recover, without_wedge
from tests.support.striped import eight, leaves, psnr_db, with_stripes

WEDGE = {"wedge_deg": 5.0, "kmin": 15.0}


def tensor(pictures):
    return torch.from_numpy(np.asarray(pictures, np.float32))


def total_variation(pictures_NHW):
    """The sum over all squares of four neighbours of how steep the picture is there, (N,)."""
    across, down = pictures_NHW.diff(dim=2) ** 2, pictures_NHW.diff(dim=1) ** 2
    square = across[:, 1:] + across[:, :-1] + down[:, :, 1:] + down[:, :, :-1]
    return square.div(2).sqrt().sum((1, 2))


def gain_db(pictures, clean):
    return np.mean([psnr_db(one.numpy(), other) for one, other in zip(pictures, clean, strict=True)])


@pytest.mark.parametrize("theta_deg", [0, 90])
@pytest.mark.slow
def test_eight_pictures_gain_five_and_a_half_db_over_stripes_and_half_over_an_empty_wedge(theta_deg):
    clean, striped = eight(theta_deg)
    known = known_frequencies(256, 256, theta_deg=theta_deg, **WEDGE)
    recovered = gain_db(recover(tensor(striped), known, theta_deg=theta_deg, kmin=15, black=0, white=255), clean)
    assert recovered - gain_db(tensor(striped), clean) >= 5.5
    assert recovered - gain_db(without_wedge(tensor(striped), known), clean) >= 0.5


@pytest.mark.parametrize("size", [(64, 64), (64, 63), (63, 64), (63, 65), (48, 100)])
@pytest.mark.parametrize("theta_deg", [0, 27, 45, 90, 133])
def test_the_mask_is_its_own_reflection_at_the_origin(size, theta_deg):
    known = known_frequencies(*size, theta_deg=theta_deg, wedge_deg=11, kmin=4)
    known = known.numpy()
    assert 0 < (~known).sum() < known.size / 4
    for column in (0, size[1] // 2) if size[1] % 2 == 0 else (0,):  # columns that hold both a frequency and its mirror
        assert all(known[row, column] == known[-row % size[0], column] for row in range(size[0]))
    spectrum = torch.fft.rfft2(tensor(np.random.default_rng(0).random((1, *size))))
    picture = torch.fft.irfft2(spectrum * torch.from_numpy(known), s=size)
    left = torch.fft.rfft2(picture)[0].abs().numpy()[~known]
    assert left.max() < 1e-3, "a mask that is not symmetric leaves power inside the wedge"


def test_a_wedge_takes_the_stripes_of_its_direction_and_no_others():
    for theta_deg in (0, 37, 90, 161):
        pattern = tensor(with_stripes(np.full((1, 200, 240), 128.0), theta_deg=theta_deg))
        left = {
            direction: float(without_wedge(pattern, known_frequencies(200, 240, theta_deg=direction, **WEDGE)).std())
            for direction in (theta_deg, (theta_deg + 45) % 180, (theta_deg + 90) % 180)
        }
        assert left.pop(theta_deg) < 0.75 * min(left.values())


def test_known_frequencies_are_exact():
    striped = tensor(with_stripes(leaves(3)[None] / 2 + 60, theta_deg=20))
    known = known_frequencies(256, 256, theta_deg=20, **WEDGE)
    after = torch.fft.rfft2(recover(striped, known, theta_deg=20, kmin=15))
    before = torch.fft.rfft2(striped)
    assert (before - after)[..., known].abs().max() < 1e-4 * before.abs().max()
    assert (before - after)[..., ~known].abs().max() > 100


def test_nothing_leaves_the_named_range_and_nothing_is_held_inside_a_range_that_is_not_named():
    dark = tensor(with_stripes(leaves(1)[None] / 8, theta_deg=0))
    known = known_frequencies(256, 256, theta_deg=0, **WEDGE)
    assert recover(dark, known, theta_deg=0, kmin=15, black=0).min() == 0
    assert recover(255 - dark, known, theta_deg=0, kmin=15, white=255).max() == 255
    free = recover(dark, known, theta_deg=0, kmin=15)
    assert free.min() < 0
    before, after = torch.fft.rfft2(dark), torch.fft.rfft2(free)
    assert (before - after)[..., known].abs().max() < 1e-4 * before.abs().max()


@pytest.mark.parametrize("values_are_lost", [True, False])
@pytest.mark.parametrize(("theta_deg", "bands"), [(0, 1), (0, 4), (64, 1)])
def test_recovery_of_other_units_is_the_recovery_in_other_units(theta_deg, bands, values_are_lost):
    clean = leaves(6, 128) * 1.2 - 25 if values_are_lost else leaves(6, 128) / 2 + 60
    striped = with_stripes(clean[None], theta_deg=theta_deg, sigma=8)
    known = known_frequencies(128, 128, theta_deg=theta_deg, **WEDGE)

    def recovered(scale, offset, dtype):
        ends = {"black": offset, "white": 255 * scale + offset} if values_are_lost else {}
        moved = torch.from_numpy(striped * scale + offset).to(dtype)
        return recover(moved, known, theta_deg=theta_deg, kmin=15, bands=bands, **ends).double()

    for dtype, offsets in ((torch.float32, (-1, 0, 1)), (torch.float64, (-1000, -1, 0, 1, 1000))):
        expected = recovered(1, 0, dtype)
        assert (expected - tensor(striped)).abs().max() > 5
        for scale in (1 / 65_535, 1, 257):
            for offset in offsets:
                moved = 255 * scale * offset
                off = (recovered(scale, moved, dtype) - moved) / scale - expected
                assert off.abs().max() < 1e-4 * 255, (dtype, scale, offset)


def test_white_areas_that_show_nothing_stay_white_as_black_ones_stay_black():
    for lost in (0.0, 255.0):
        clean = leaves(5)[None].clip(40, 215)
        clean[:, 60:200, 60:200] = lost + (80 if lost else -80)
        striped = with_stripes(clean, theta_deg=0)
        known = known_frequencies(256, 256, theta_deg=0, **WEDGE)
        recovered = recover(tensor(striped), known, theta_deg=0, kmin=15, black=0, white=255)
        assert (recovered[:, 80:180, 80:180] == lost).all()


def test_pixels_that_are_no_numbers_stay_so_and_leave_the_others_as_good():
    clean, striped = leaves(5)[None], with_stripes(leaves(5)[None], theta_deg=20)
    known = known_frequencies(256, 256, theta_deg=20, **WEDGE)
    holed = tensor(striped)
    holed[:, 30:60, 100:180] = torch.nan
    recovered = recover(holed, known, theta_deg=20, kmin=15)
    seen = ~holed.isnan()
    assert torch.equal(recovered.isnan(), holed.isnan())
    whole = recover(tensor(striped), known, theta_deg=20, kmin=15)
    assert psnr_db(recovered[seen].numpy(), clean[seen]) > psnr_db(whole[seen].numpy(), clean[seen]) - 1


def test_a_picture_turned_by_90_degrees_comes_out_turned():
    striped = tensor(with_stripes(leaves(2, 128)[None], theta_deg=30))
    turned = torch.rot90(striped, 1, (1, 2))
    upright = recover(striped, known_frequencies(128, 128, theta_deg=30, **WEDGE), theta_deg=30, kmin=15)
    assert (
        recover(striped, known_frequencies(128, 128, theta_deg=120, **WEDGE), theta_deg=120, kmin=15) - upright
    ).abs().max() > 5
    lying = recover(turned, known_frequencies(128, 128, theta_deg=120, **WEDGE), theta_deg=120, kmin=15)
    # Not to the bit: reweighting begins at a median of every fourth row, and ends before it has converged.
    assert gain_db(torch.rot90(upright, 1, (1, 2)), lying.numpy()) > 42


def test_the_picture_varies_less_than_the_striped_one_and_than_an_empty_wedge():
    striped = tensor(with_stripes(leaves(4, 128)[None], theta_deg=0))
    known = known_frequencies(128, 128, theta_deg=0, **WEDGE)
    recovered = float(total_variation(recover(striped, known, theta_deg=0, kmin=15)))
    assert recovered < 0.98 * float(total_variation(without_wedge(striped, known))) < float(total_variation(striped))


def test_black_bars_stay_black_and_stripes_in_the_picture_between_them_go():
    barred = leaves(5)[None].clip(40, 215)
    barred[:, :50], barred[:, 206:] = 0, 0
    striped = with_stripes(barred, theta_deg=0)
    known = known_frequencies(256, 256, theta_deg=0, **WEDGE)
    recovered = recover(tensor(striped), known, theta_deg=0, kmin=15, black=0, white=255)
    assert recovered[:, :40].mean() < 0.5 * striped[:, :40].mean()  # what is left is slower than kmin
    assert gain_db(recovered, barred) > gain_db(tensor(striped), barred) + 7


def test_stripes_that_end_are_taken_out_where_they_are():
    clean = leaves(6)[None]
    striped = clean.copy()
    striped[:, :128] = with_stripes(clean, theta_deg=0)[:, :128]
    known = known_frequencies(256, 256, theta_deg=0, **WEDGE)
    one, four = (gain_db(recover(tensor(striped), known, theta_deg=0, kmin=15, bands=bands), clean) for bands in (1, 4))
    assert four > one + 2 and four > gain_db(tensor(striped), clean) + 4


def test_there_is_no_chance_in_it_and_no_company():
    striped = tensor(with_stripes(np.stack([leaves(seed, 128) for seed in (5, 6, 7)]), theta_deg=0))
    known = known_frequencies(128, 128, theta_deg=0, **WEDGE)
    together = recover(striped, known, theta_deg=0, kmin=15)
    assert torch.equal(together, recover(striped, known, theta_deg=0, kmin=15))
    alone = torch.cat([recover(picture[None], known, theta_deg=0, kmin=15) for picture in striped])
    assert (together - alone).abs().max() < 1e-2


def test_a_picture_without_edges_does_not_divide_by_nothing():
    flat = torch.full((1, 64, 64), 90.0)
    out = recover(flat, known_frequencies(64, 64, theta_deg=0, **WEDGE), theta_deg=0, kmin=15)
    assert torch.allclose(out, flat, atol=1e-3)
