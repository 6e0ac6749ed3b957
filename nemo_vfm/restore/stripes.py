# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Removes stripes from pictures, after arXiv 1901.08001.

The paper is "Removing Stripes, Scratches, and Curtaining with Non-Recoverable Compressed Sensing".

Stripes of one direction lie in a thin wedge of the Fourier plane. The wedge is emptied and filled again by the picture
of least total variation that agrees with everything outside of it. This brings back what edges and textures of other
directions say about the wedge. What lies only in the wedge, which is what stripes are, stays away.

Where we depart from the paper: it descends the total variation in some 230 steps. Stripes hardly change along
themselves. So once the picture is sheared until they are vertical, its total variation separates into one sum for each
pair of neighbouring columns. What the stripes add to a pair is one number: the minimum of that sum, a kind of weighted
median over the rows. Some rounds of reweighting find it, in a tenth of the time or less. What the wedge cannot hold of
it is left in the picture.

Shape letters: N pictures of one channel, H height, W width, K = W // 2 + 1 the half of the Fourier plane that `rfft2`
keeps, S columns of the sheared picture, B bands of rows. Angles are those of the stripes, counter-clockwise: 0 degrees
are vertical stripes, 90 horizontal ones.
"""

from dataclasses import dataclass
from math import ceil, floor, hypot, radians, tan

import torch
from torch import Tensor

_ROUNDS = 6
_SURE = 15.0  # standard errors
_NOISE = 1.0  # grey levels squared, under the root: a step below that is no edge
_FEWEST = 24  # rows: of fewer, in the corners of a sheared picture, nothing can be told
_MEDIAN_EVERY = 4  # rows: where to begin need not be exact
_SIDE = 9  # pixels around one whose value was lost
_DRIFT = 0.5  # of kmin: slower than that is what errors of columns add up to


def known_frequencies(height: int, width: int, *, theta_deg: float, wedge_deg: float, kmin: float) -> Tensor:
    """Which frequencies are kept, (H, K) bool: all but a wedge across the stripes.

    Args:
        theta_deg: direction of the stripes, in pixels and not in cycles, so that it is what the eye sees.
        wedge_deg: the wedge's full opening angle.
        kmin: cycles per picture below which everything is kept: slow shading is picture, not stripes.
    """
    y_H1 = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    x_1W = torch.fft.fftfreq(width, dtype=torch.float64)[None]
    angle_HW = torch.rad2deg(torch.atan2(-y_H1, x_1W))
    off_HW = ((angle_HW - theta_deg + 90) % 180 - 90).abs()
    cycles_HW = torch.hypot(y_H1 * height, x_1W * width)
    known_HW = (off_HW > wedge_deg / 2 + 1e-9) | (cycles_HW < kmin)
    # The spectrum of a real picture is symmetric about the origin. At the highest frequency of an even size, which has
    # one sign only, the angles are not, and a mask that is not symmetric makes a picture that is not real.
    known_HW &= known_HW.flip(0, 1).roll((1, 1), (0, 1))
    known_HK: Tensor = known_HW[:, : width // 2 + 1]
    return known_HK


def without_wedge(striped_NHW: Tensor, known_HK: Tensor) -> Tensor:
    """The wedge emptied and left so: what recovery is better than."""
    emptied_NHW: Tensor = torch.fft.irfft2(torch.fft.rfft2(striped_NHW) * known_HK, s=striped_NHW.shape[1:])
    return emptied_NHW


def recover(striped_NHW: Tensor, known_HK: Tensor, *, theta_deg: float, kmin: float, bands: int = 1) -> Tensor:
    """The picture nowhere below 0 with the known frequencies of the striped one, and all others as they vary least.

    The known frequencies are exact, up to what clipping at 0 takes. No random numbers, and each picture comes out the
    same in any company.

    Args:
        striped_NHW: not negative, float32.
        known_HK: from `known_frequencies` of the same direction and kmin.
        theta_deg: direction of the stripes.
        kmin: cycles per picture below which nothing is touched.
        bands: see `stripes`.
    """
    found = [stripes(one, known_HK, theta_deg=theta_deg, kmin=kmin, bands=bands) for one in striped_NHW]
    return torch.stack([without(one, stripes_HW) for one, stripes_HW in zip(striped_NHW, found, strict=True)])


def without(striped_HW: Tensor, stripes_HW: Tensor) -> Tensor:
    """Stripes subtracted. Where they had driven the picture to black or white, it was somewhere in between.

    There it becomes what is around it, as far as that is possible: the black bars of a letterbox stay black.
    """
    picture_HW = striped_HW - stripes_HW
    black_HW, white_HW = (striped_HW <= 0) & (stripes_HW < 0), (striped_HW >= 255) & (stripes_HW > 0)
    cut_HW = black_HW | white_HW
    if cut_HW.any():
        seen_HW = (~cut_HW).float()
        around_HW = _around(picture_HW * seen_HW) / _around(seen_HW).clamp_min(1e-6)
        low_HW = torch.where(black_HW, 0, picture_HW)
        high_HW = torch.where(white_HW, 255, picture_HW)
        picture_HW = torch.where(cut_HW, around_HW.clamp(low_HW, high_HW), picture_HW)
    return picture_HW.clamp_min_(0)


def _around(picture_HW: Tensor) -> Tensor:
    """The sum of 9 x 9 pixels around each."""
    for side in ((1, _SIDE), (_SIDE, 1)):
        padding = (side[0] // 2, side[1] // 2)
        picture_HW = torch.nn.functional.avg_pool2d(picture_HW[None], side, 1, padding)[0]
    return picture_HW


def stripes(striped_HW: Tensor, known_HK: Tensor, *, theta_deg: float, kmin: float, bands: int = 1) -> Tensor:
    """What is to be subtracted from one picture; see `recover`.

    Args:
        bands: stripes are what is the same all along them; with more than 1, also what differs between so many bands of
            the picture, since stripes may end. A band has less to tell stripes from edges by, so that edges suffer.
    """
    lying = 45 < theta_deg % 180 < 135
    upright_HW = striped_HW.T.contiguous() if lying else striped_HW
    slope = tan(radians(90 - theta_deg if lying else theta_deg))
    height, width = upright_HW.shape
    drift = _DRIFT * kmin / hypot(1, slope * height / width)
    found_HW = _upright_stripes(upright_HW, _Shear.of(height, width, slope), drift, bands)
    spectrum_HK = torch.fft.rfft2(found_HW.T if lying else found_HW).masked_fill_(known_HK.to(striped_HW.device), 0)
    wedge_HW: Tensor = torch.fft.irfft2(spectrum_HK, s=striped_HW.shape)
    return wedge_HW


@dataclass(frozen=True, slots=True)
class _Shear:
    """Moves rows until stripes are vertical: by whole columns, and what is left in each row's Fourier transform.

    Args:
        starts: of each row, the column of the sheared picture that it begins in.
        rest_H1: how much further each row moves, -0.5 to 0.5; None where rows stay.
        size: height, width, and columns of the sheared picture.
    """

    starts: tuple[int, ...]
    rest_H1: Tensor | None
    size: tuple[int, int, int]

    @classmethod
    def of(cls, height: int, width: int, slope: float) -> "_Shear":
        """Stripes go to the right by `slope` columns a row downwards."""
        offsets = [-slope * row + max(0.0, slope * (height - 1)) for row in range(height)]
        starts = tuple(floor(offset + 0.5) for offset in offsets)
        rest_H1 = torch.tensor([offset - start for offset, start in zip(offsets, starts, strict=True)])[:, None]
        return cls(starts, rest_H1 if slope else None, (height, width, width + ceil(abs(slope) * (height - 1))))

    def there(self, upright_HW: Tensor) -> Tensor:
        """Sheared, (H, S); NaN where there is no picture, or only black or white, which stripes may have made so."""
        lost_HW = (upright_HW <= 0) | (upright_HW >= 255)
        if self.rest_H1 is None:
            return upright_HW.masked_fill(lost_HW, torch.nan)
        moved_HW = _moved(upright_HW, self.rest_H1).masked_fill_(lost_HW, torch.nan)
        out_HS = torch.full((self.size[0], self.size[2] + 1), torch.nan)
        for row, start in enumerate(self.starts):
            out_HS[row, start : start + self.size[1]] = moved_HW[row]
        return out_HS

    def back(self, sheared_HS: Tensor) -> Tensor:
        """As it was before."""
        if self.rest_H1 is None:
            return sheared_HS
        rows = [sheared_HS[row, start : start + self.size[1]] for row, start in enumerate(self.starts)]
        return _moved(torch.stack(rows), -self.rest_H1)


def _moved(picture_HW: Tensor, right_H1: Tensor) -> Tensor:
    """Rows moved to the right by less than a column each."""
    width = picture_HW.shape[1]
    turn_HK = torch.polar(torch.tensor(1.0), -2 * torch.pi * right_H1 * torch.fft.rfftfreq(width))
    moved_HW: Tensor = torch.fft.irfft(torch.fft.rfft(picture_HW) * turn_HK, n=width)
    return moved_HW


def _upright_stripes(picture_HW: Tensor, shear: _Shear, drift: float, most: int) -> Tensor:
    """Stripes of the whole height, and those of bands in what these leave."""
    left_HS, found_HS = shear.there(picture_HW), None
    for bands in sorted({1, most}):
        steps_BS = torch.stack([_steps(band, sure=bands > 1) for band in left_HS.tensor_split(bands)])
        stripes_BS = _without_drift(torch.cumsum(steps_BS, 1), drift * left_HS.shape[1] / picture_HW.shape[1])
        added_HS = _between(stripes_BS, left_HS.shape[0])
        found_HS = added_HS if found_HS is None else found_HS + added_HS
        left_HS = left_HS - added_HS
    assert found_HS is not None
    return shear.back(found_HS)


def _steps(band_HS: Tensor, *, sure: bool) -> Tensor:
    """What stripes add from each column to the next, (S,); the first has none before it.

    Args:
        sure: only steps that are many times their own error; the others are 0.
    """
    across = band_HS.diff(dim=1)
    along = torch.zeros_like(band_HS)
    torch.sub(band_HS[1:], band_HS[:-1], out=along[1:]).square_()
    flat = (along[:, 1:] + along[:, :-1]).mul_(0.5).add_(_NOISE)
    there = ~across.isnan()
    step = across[::_MEDIAN_EVERY].nanmedian(0).values.nan_to_num_()
    if whole := bool(there.all()):
        enough = torch.ones_like(step)
    else:
        enough = (there.sum(0) >= _FEWEST).float()
        flat, across = flat.nan_to_num_(_NOISE), across.nan_to_num(0.0)
    weight, weighted = torch.empty_like(across), torch.empty_like(across)
    for _ in range(_ROUNDS):
        torch.sub(across, step, out=weight).square_().add_(flat).rsqrt_()
        if not whole:
            weight *= there
        torch.mul(weight, across, out=weighted)
        sums = weight.sum(0)
        step = enough * weighted.sum(0) / sums.clamp_min(1e-12)
    if sure:
        step *= step.abs() > _SURE * there.sum(0).sqrt() / sums.clamp_min(1e-12)
    return torch.cat([step.new_zeros(1), step])


def _without_drift(stripes_BS: Tensor, cycles: float) -> Tensor:
    """Without what is slower than so many cycles. Mirrored at its end, since a jump to its start would be a stripe."""
    width = stripes_BS.shape[1]
    spectrum = torch.fft.rfft(torch.cat([stripes_BS, stripes_BS.flip(1)], 1))
    spectrum[:, : ceil(2 * cycles)] = 0
    kept_BS: Tensor = torch.fft.irfft(spectrum, n=2 * width)[:, :width]
    return kept_BS


def _between(stripes_BS: Tensor, height: int) -> Tensor:
    """Bands of rows as (H, S): each in its own middle, and in between what lies between."""
    bands = stripes_BS.shape[0]
    if bands == 1:
        return stripes_BS.expand(height, -1)
    place_H1 = ((torch.arange(height) + 0.5) * bands / height - 0.5).clamp(0, bands - 1)[:, None]
    above = place_H1.floor().long().clamp_max(bands - 2)[:, 0]
    return torch.lerp(stripes_BS[above], stripes_BS[above + 1], place_H1 - above[:, None])
