"""Removes stripes from pictures, after arXiv 1901.08001.

The paper is "Removing Stripes, Scratches, and Curtaining with Non-Recoverable Compressed Sensing".

Stripes of one direction lie in a thin wedge of the Fourier plane. The wedge is emptied and filled again by the picture
of least total variation that agrees with everything outside of it. This brings back what edges and textures of other
directions say about the wedge. What lies only in the wedge, which is what stripes are, stays away.

Where we depart from the paper: it descends the total variation in some 230 steps. Stripes hardly change along
themselves. So once the picture is sheared until they are vertical, its total variation separates into one sum for each
pair of neighbouring columns. What the stripes add to a pair is one number: the minimum of that sum, a kind of weighted
median over the rows. Some rounds of reweighting find it, in a tenth of the time or less. Rows are weighted by the
inverse square of their distance from it, and not by the inverse, as total variation would: the slopes of blurred spots
then pull it less (a 16-bit picture of spots gained 12.2 dB and not 10.9; photographs gain the same). What the wedge
cannot hold of it is left in the picture.

Pictures may have any unit and offset, and what comes out has the same. A grey level is one of 255 steps of a picture's
own spread, from its darkest hundredth to its brightest.

Shape letters: N pictures of one channel, H height, W width, K = W // 2 + 1 the half of the Fourier plane that `rfft2`
keeps, S columns of the sheared picture, B bands of rows. Angles are those of the stripes, counter-clockwise: 0 degrees
are vertical stripes, 90 horizontal ones.
"""

from dataclasses import dataclass
from math import ceil, floor, hypot, radians, tan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.types.media_types import Plane

_ROUNDS = 6
_SURE = 15.0  # standard errors
_NOISE = 1.0  # grey levels squared, under the root: a step below that is no edge
_DARKEST, _SEEN = 0.01, 1 << 18  # parts of the pixels at each end that are outside the spread; pixels looked at for it
_EXACT = 0.5  # of the rows; where fewer are unclipped, clipped ones are taken as they are seen
_FEWEST = 24  # rows: of fewer, in the corners of a sheared picture, nothing can be told
_MEDIAN_EVERY = 4  # rows: where to begin need not be exact
_SIDE = 9  # pixels around one whose value was lost
_DRIFT = 0.5  # of kmin: slower than that is what errors of columns add up to
_WITHIN_DEG = 3.5
_STEP_PX = 0.5  # between two candidates, at the far end of a stripe
_BLOCKS = 32
_EDGE = 30.0  # grey levels from one column to the next, above which it is an edge and counts no more


def known_frequencies(height: int, width: int, *, theta_deg: float, wedge_deg: float, kmin: float) -> Tensor:
    """Which frequencies are kept, (H, K) bool: all but a wedge across the stripes.

    Args:
        theta_deg: direction of the stripes, in pixels and not in cycles, so that it is what the eye sees.
        wedge_deg: the wedge's full opening angle.
        kmin: cycles per picture below which everything is kept: slow shading is picture, not stripes.
    """
    y_H, x_W = (torch.fft.fftfreq(length, dtype=torch.float64) for length in (height, width))
    known_HK = torch.ones(height, width // 2 + 1, dtype=torch.bool)
    # The spectrum of a real picture is symmetric about the origin. At the highest frequency of an even size, which has
    # one sign only, the angles are not, and a mask that is not symmetric makes a picture that is not real.
    for y, x in ((y_H, x_W), (y_H.flip(0).roll(1), x_W.flip(0).roll(1))):
        y_H1, x_1K = y[:, None], x[None, : width // 2 + 1]
        off_HK = torch.atan2(-y_H1, x_1K).rad2deg_().sub_(theta_deg - 90).remainder_(180).sub_(90).abs_()
        known_HK &= (off_HK > wedge_deg / 2 + 1e-9) | (torch.hypot(y_H1 * height, x_1K * width) < kmin)
    return known_HK


def without_wedge(striped_NHW: Tensor, known_HK: Tensor) -> Tensor:
    """The wedge emptied and left so: what recovery is better than."""
    emptied_NHW: Tensor = torch.fft.irfft2(torch.fft.rfft2(striped_NHW) * known_HK, s=striped_NHW.shape[1:])
    return emptied_NHW


def recover(
    striped_NHW: Tensor, known_HK: Tensor, *, theta_deg: float, kmin: float, bands: int = 1,
    black: float | None = None, white: float | None = None,
) -> Tensor:  # fmt: skip
    """The picture between black and white with the known frequencies of the striped one; all others vary least.

    The known frequencies are exact, up to what is lost at black and white. No random numbers, and each picture comes
    out the same in any company.

    Args:
        striped_NHW: float32 or float64, in any unit; what is no number stays so.
        known_HK: from `known_frequencies` of the same direction and kmin.
        theta_deg: direction of the stripes.
        kmin: cycles per picture below which nothing is touched.
        bands: see `stripes`.
        black: the lowest value that the sensor or the type could hold: where it is found, the true one is lost, and
            nothing that comes out is lower. None: no value is lost there.
        white: the highest, likewise.
    """
    pictures = []
    for striped_HW in striped_NHW:
        stripes_HW = stripes(
            striped_HW, known_HK, theta_deg=theta_deg, kmin=kmin, bands=bands, black=black, white=white
        )
        pictures.append(without(striped_HW, stripes_HW, black=black, white=white))
    return torch.stack(pictures)


def without(
    striped_HW: Tensor, stripes_HW: Tensor, *, black: float | None = None, white: float | None = None
) -> Tensor:
    """Stripes subtracted. Where they had driven the picture to black or white, it was somewhere in between.

    There it becomes what is around it, as far as that is possible: the black bars of a letterbox stay black.
    """
    picture_HW = striped_HW - stripes_HW
    is_black_HW, is_white_HW = at_ends(striped_HW, black, white)
    black_HW, white_HW = is_black_HW & (stripes_HW < 0), is_white_HW & (stripes_HW > 0)
    cut_HW = black_HW | white_HW
    if cut_HW.any():
        seen_HW = (picture_HW.isfinite() & ~cut_HW).to(picture_HW.dtype)
        share_HW = _around(seen_HW)
        around_HW = _around(torch.where(seen_HW > 0, picture_HW, 0)) / share_HW
        around_HW = torch.where(share_HW > 0, around_HW, striped_HW)
        low_HW, high_HW = (torch.where(there, striped_HW, picture_HW) for there in (black_HW, white_HW))
        picture_HW = torch.where(cut_HW, around_HW.clamp(low_HW, high_HW), picture_HW)
    return picture_HW if black is None and white is None else picture_HW.clamp_(black, white)


def at_ends(picture_HW: Tensor, black: float | None, white: float | None) -> tuple[Tensor, Tensor]:
    """Where a picture is black, and where white: to within rounding, since both may come out of a change of units."""
    ends = [abs(end) for end in (black, white) if end is not None]
    near = 8 * torch.finfo(picture_HW.dtype).eps * max(ends, default=0.0)
    none_HW = torch.zeros_like(picture_HW, dtype=torch.bool)
    return (
        none_HW if black is None else picture_HW <= black + near,
        none_HW if white is None else picture_HW >= white - near,
    )


def _around(picture_HW: Tensor) -> Tensor:
    """The sum of 9 x 9 pixels around each."""
    for side in ((1, _SIDE), (_SIDE, 1)):
        padding = (side[0] // 2, side[1] // 2)
        picture_HW = torch.nn.functional.avg_pool2d(picture_HW[None], side, 1, padding)[0]
    return picture_HW


def grey_levels(picture_HW: Tensor, lost_HW: Tensor) -> tuple[float, float]:
    """What is 0 of a picture's own grey levels, and how much each is, by the pixels that are not lost."""
    every = -(-picture_HW.numel() // _SEEN)
    values = picture_HW[::every][~lost_HW[::every]]
    if not values.numel():
        return 0.0, 1.0
    last = values.numel() - 1
    for outside in (_DARKEST, 0.0):
        places = (round(outside * last) + 1, round((1 - outside) * last) + 1)
        low, high = (float(values.kthvalue(place).values) for place in places)
        if high > low:
            break
    return low, (high - low) / 255 or 1.0


def stripes(
    striped_HW: Tensor, known_HK: Tensor, *, theta_deg: float, kmin: float, bands: int = 1,
    black: float | None = None, white: float | None = None,
) -> Tensor:  # fmt: skip
    """What is to be subtracted from one picture; see `recover`.

    Args:
        bands: stripes are what is the same all along them; with more than 1, also what differs between so many bands of
            the picture, since stripes may end. A band has less to tell stripes from edges by, so that edges suffer.
    """
    is_black_HW, is_white_HW = at_ends(striped_HW, black, white)
    lost_HW = is_black_HW | is_white_HW | ~striped_HW.isfinite()
    low, level = grey_levels(striped_HW, lost_HW)
    grey_HW = ((striped_HW - low) / level).nan_to_num_(torch.nan, torch.nan, torch.nan)  # no infinite ones
    lying = 45 < theta_deg % 180 < 135
    upright_HW = grey_HW.T.contiguous() if lying else grey_HW
    slope = tan(radians(90 - theta_deg if lying else theta_deg))
    height, width = upright_HW.shape
    drift = _DRIFT * kmin / hypot(1, slope * height / width)
    ends_HW = is_white_HW.to(torch.int8) - is_black_HW.to(torch.int8)
    found_HW = _upright_stripes(
        upright_HW, ends_HW.T if lying else ends_HW, _Shear.of(height, width, slope), drift, bands
    )
    spectrum_HK = torch.fft.rfft2(found_HW.T if lying else found_HW).masked_fill_(known_HK.to(striped_HW.device), 0)
    wedge_HW: Tensor = torch.fft.irfft2(spectrum_HK, s=striped_HW.shape)
    return wedge_HW.mul_(level)


@dataclass(frozen=True, slots=True)
class _Shear:
    """Moves rows until stripes are vertical: by whole columns, and what is left in each row's Fourier transform."""

    starts: tuple[int, ...]  #: of each row, the column of the sheared picture that it begins in
    rest_H1: Tensor | None  #: how much further each row moves, -0.5 to 0.5; None where rows stay
    size: tuple[int, int, int]  #: height, width, and columns of the sheared picture

    @classmethod
    def of(cls, height: int, width: int, slope: float) -> "_Shear":
        """Stripes go to the right by `slope` columns a row downwards."""
        offsets = [-slope * row + max(0.0, slope * (height - 1)) for row in range(height)]
        starts = tuple(floor(offset + 0.5) for offset in offsets)
        rest = [offset - start for offset, start in zip(offsets, starts, strict=True)]
        rest_H1 = torch.tensor(rest, dtype=torch.float64)[:, None]
        return cls(starts, rest_H1 if slope else None, (height, width, width + ceil(abs(slope) * (height - 1))))

    def there(self, upright_HW: Tensor) -> Tensor:
        """Sheared, (H, S); NaN where there is no picture."""
        if self.rest_H1 is None:
            return upright_HW
        missing_HW = upright_HW.isnan()
        moved_HW = _shift_rows(upright_HW.nan_to_num(), self.rest_H1).masked_fill_(missing_HW, torch.nan)
        return self.by_columns(moved_HW, torch.nan)

    def by_columns(self, upright_HW: Tensor, outside: float) -> Tensor:
        """Sheared by whole columns, (H, S)."""
        if self.rest_H1 is None:
            return upright_HW
        out_HS = upright_HW.new_full((self.size[0], self.size[2] + 1), outside)
        for row, start in enumerate(self.starts):
            out_HS[row, start : start + self.size[1]] = upright_HW[row]
        return out_HS

    def back(self, sheared_HS: Tensor) -> Tensor:
        """As it was before."""
        if self.rest_H1 is None:
            return sheared_HS
        rows = [sheared_HS[row, start : start + self.size[1]] for row, start in enumerate(self.starts)]
        return _shift_rows(torch.stack(rows), -self.rest_H1)


def _shift_rows(picture_HW: Tensor, right_H1: Tensor) -> Tensor:
    """Rows moved to the right by less than a column each."""
    width = picture_HW.shape[1]
    turn_HK = -2 * torch.pi * right_H1 * torch.fft.rfftfreq(width, dtype=torch.float64)
    turn_HK = torch.polar(picture_HW.new_ones(()), turn_HK.to(picture_HW.dtype))
    moved_HW: Tensor = torch.fft.irfft(torch.fft.rfft(picture_HW) * turn_HK, n=width)
    return moved_HW


def _upright_stripes(picture_HW: Tensor, ends_HW: Tensor, shear: _Shear, drift: float, most: int) -> Tensor:
    """Stripes of the whole height, and those of bands in what these leave."""
    left_HS, found_HS, ends_HS = shear.there(picture_HW), None, shear.by_columns(ends_HW, 0)
    for bands in sorted({1, most}):
        parts = zip(left_HS.tensor_split(bands), ends_HS.tensor_split(bands), strict=True)
        steps_BS = torch.stack([_steps(band, ends, sure=bands > 1) for band, ends in parts])
        stripes_BS = torch.cumsum(steps_BS, 1)
        # Without what is slower than the drift. Mirrored at its end, since a jump to its start would be a stripe.
        spectrum = torch.fft.rfft(torch.cat([stripes_BS, stripes_BS.flip(1)], 1))
        spectrum[:, : ceil(2 * (drift * left_HS.shape[1] / picture_HW.shape[1]))] = 0
        stripes_BS = torch.fft.irfft(spectrum, n=2 * stripes_BS.shape[1])[:, : stripes_BS.shape[1]]
        added_HS = _interpolate_bands(stripes_BS, left_HS.shape[0])
        found_HS = added_HS if found_HS is None else found_HS + added_HS
        left_HS = left_HS - added_HS
    assert found_HS is not None
    return shear.back(found_HS)


def _steps(band_HS: Tensor, ends_HS: Tensor, *, sure: bool) -> Tensor:
    """What stripes add from each column to the next, (S,); the first has none before it.

    Args:
        ends_HS: -1 where the true value lies below black, 1 above white. A step from or to there is at least, or at
            most, what is seen of it: it counts only where it says that a guess is wrong.
        sure: only steps that are many times their own error; the others are 0.
    """
    across = band_HS.diff(dim=1)
    along = torch.zeros_like(band_HS)
    torch.sub(band_HS[1:], band_HS[:-1], out=along[1:]).square_()
    flat = (along[:, 1:] + along[:, :-1]).mul_(0.5).add_(_NOISE)
    there, bound = ~across.isnan(), None
    if ends_HS.any():
        bound = ends_HS.diff(dim=1)
        there &= (bound != 0) | (ends_HS[:, 1:] == 0)
        bound *= (there & (bound == 0)).sum(0) >= _EXACT * there.sum(0)
    counts = there if bound is None else there & (bound == 0)
    every = slice(None, None, _MEDIAN_EVERY)
    step = across[every].masked_fill(~counts[every], torch.nan).nanmedian(0).values.nan_to_num_()
    enough, whole = there.sum(0) >= _FEWEST, bool(there.all())
    if not whole:
        flat, across = flat.nan_to_num_(_NOISE), across.nan_to_num(0.0)
    weight, weighted = torch.empty_like(across), torch.empty_like(across)
    for _ in range(_ROUNDS):
        torch.sub(across, step, out=weight)
        counts = there if bound is None else there & (weight * bound >= 0)
        weight.square_().add_(flat).reciprocal_()
        if bound is not None or not whole:
            weight *= counts
        torch.mul(weight, across, out=weighted)
        sums = weight.sum(0)
        step = torch.where(sums > 0, weighted.sum(0) / sums, step)
    step = torch.where(enough, step, 0)
    if sure:
        error = torch.sub(across, step).mul_(weight).square_().sum(0).sqrt() / sums.clamp_min(1e-12)
        step *= step.abs() > _SURE * error
    return torch.cat([step.new_zeros(1), step])


def _interpolate_bands(stripes_BS: Tensor, height: int) -> Tensor:
    """Bands of rows as (H, S): each in its own middle, and in between what lies between."""
    bands = stripes_BS.shape[0]
    if bands == 1:
        return stripes_BS.expand(height, -1)
    place_H1 = ((torch.arange(height) + 0.5) * bands / height - 0.5).clamp(0, bands - 1)[:, None]
    above = place_H1.floor().long().clamp_max(bands - 2)[:, 0]
    return torch.lerp(stripes_BS[above], stripes_BS[above + 1], (place_H1 - above[:, None]).to(stripes_BS.dtype))


def refine_deg(luma_THW: Plane | NDArray[np.uint8], theta_deg: float) -> float:
    """The direction near `theta_deg` in which the steps from column to column add up to most power.

    Eight pictures with stripes of 0 degrees were taken for 1 in two; sheared so, they gained 0.2 dB and not 9.
    """
    lying = 45 < theta_deg % 180 < 135
    upright_THW = luma_THW.transpose(0, 2, 1) if lying else luma_THW
    near_deg = ((90 - theta_deg if lying else theta_deg) + 90) % 180 - 90
    centre = 0.0 if abs(near_deg) <= 2 else float(np.tan(np.radians(near_deg)))
    height = upright_THW.shape[1]
    edges_B = np.linspace(0, height, min(_BLOCKS, height) + 1).astype(int)
    middles_B = (edges_B[:-1] + edges_B[1:] - 1) / 2
    reach = int(height * np.tan(np.radians(_WITHIN_DEG)) / _STEP_PX * (1 + centre**2))
    slopes = np.arange(-reach, reach + 1) * _STEP_PX / height
    power = np.zeros(len(slopes))
    for frame_HW in upright_THW:
        step_HW = np.clip(np.diff(frame_HW.astype(np.float32), axis=1), -_EDGE, _EDGE)
        if centre:
            step_HW = np.stack([np.roll(row_W, -round(centre * y)) for y, row_W in enumerate(step_HW)])
        spectra_BF = np.fft.rfft(np.add.reduceat(step_HW, edges_B[:-1], axis=0), axis=1)
        turn_F = 2j * np.pi * np.fft.rfftfreq(step_HW.shape[1])
        for place, slope in enumerate(slopes):
            turned_BF = spectra_BF * np.exp(turn_F * slope * middles_B[:, None])
            power[place] += float((np.abs(turned_BF.sum(0)) ** 2).sum())
    best_deg = float(np.degrees(np.arctan(centre + slopes[int(power.argmax())])))
    return (90 - best_deg if lying else best_deg) % 180
