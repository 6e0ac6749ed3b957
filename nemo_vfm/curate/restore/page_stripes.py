"""Finds and removes stripes in single pages of images, in any unit and pixel type.

Shape letters: H height, W width, S samples of a pixel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.restore.stripe_direction import refine_deg
from nemo_vfm.restore.stripe_excess import StripeExcess, require_wedge

if TYPE_CHECKING:
    from torch import Tensor

End = float | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class PageStripes:
    """Stripes of one picture.

    Args:
        added_HW: what they add to it.
        theta_deg: their direction.
        bands: in how many they were looked for; 1 where they cross the whole picture.
        excess_db: of the picture with them.
    """

    added_HW: Plane
    theta_deg: float
    bands: int
    excess_db: float


class StripeFinder:
    """Finds the stripes of pictures; arguments as those of `DestripeImages`."""

    def __init__(
        self, *, theta_deg: float | Literal["auto"], wedge_deg: float, kmin: float, min_excess_db: float,
        black: End, white: End,
    ) -> None:  # fmt: skip
        require_wedge(theta_deg, wedge_deg, kmin)
        self.theta_deg, self.wedge_deg, self.kmin, self.min_excess_db = theta_deg, wedge_deg, kmin, min_excess_db
        self.black, self.white = black, white

    def ends(self, dtype: np.dtype[Any]) -> tuple[float | None, float | None]:
        """Black and white of pixels of this type; `auto` means the ends of an integer, and none of a float."""
        limits = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind == "u" else (None, None)
        asked = (self.black, self.white)
        found = [end if value == "auto" else value for value, end in zip(asked, limits, strict=True)]
        black, white = (None if value is None else float(value) for value in found)
        return black, white

    def find(self, picture_HW: Plane, ends: tuple[float | None, float | None]) -> PageStripes | None:
        """The stripes of a picture; None where it has none. What is no number is looked past."""
        import torch

        from nemo_vfm.restore.stripes import known_frequencies, stripes

        seen_HW = torch.from_numpy(picture_HW)
        grey_HW = _in_grey_levels(seen_HW, ends)
        excess = StripeExcess.of(grey_HW[None])
        if (found := excess.strongest(self.theta_deg, self.min_excess_db)) is None:
            return None
        theta, bands = found
        exact = refine_deg(grey_HW[None], theta) if self.theta_deg == "auto" else theta
        known = known_frequencies(*picture_HW.shape, theta_deg=exact, wedge_deg=self.wedge_deg, kmin=self.kmin)
        added_HW = stripes(
            seen_HW, known, theta_deg=exact, kmin=self.kmin, bands=bands, black=ends[0], white=ends[1]
        ).numpy()
        return PageStripes(added_HW, exact, bands, excess.of_stripes_db(theta, bands))


def excess_db(picture_HW: Plane, ends: tuple[float | None, float | None], like: PageStripes) -> float:
    """The excess of a picture in the direction of stripes that were found."""
    import torch

    grey_HW = _in_grey_levels(torch.from_numpy(picture_HW), ends)
    return StripeExcess.of(grey_HW[None]).of_stripes_db(like.theta_deg, like.bands)


def share_of(picture_HW: Plane, stripes_HW: Plane) -> float:
    """How much of these stripes a picture holds: near 1 where they are in it, near 0 where they are not."""
    seen_HW = np.isfinite(picture_HW)
    added_HW = np.where(seen_HW, stripes_HW, 0)
    level = float(np.median(picture_HW[seen_HW])) if seen_HW.any() else 0.0
    power = float(np.square(added_HW, dtype=np.float64).sum())
    return float((added_HW * np.where(seen_HW, picture_HW - level, 0)).sum(dtype=np.float64)) / (power or 1.0)


def without_stripes(
    stored_HW: NDArray[Any], stripes_HW: Plane, ends: tuple[float | None, float | None]
) -> tuple[NDArray[Any], int]:
    """A picture without them, in its own type, and how many pixels had to be held between black and white."""
    import torch

    from nemo_vfm.restore.stripes import without

    striped_HW = stored_HW.astype(np.float32)
    clean_HW = without(torch.from_numpy(striped_HW), torch.from_numpy(stripes_HW), black=ends[0], white=ends[1]).numpy()
    limits = (np.iinfo(stored_HW.dtype).min, np.iinfo(stored_HW.dtype).max) if stored_HW.dtype.kind == "u" else ends
    low, high = (limit if end is None else end for limit, end in zip(limits, ends, strict=True))
    free_HW = np.subtract(striped_HW, stripes_HW, out=striped_HW)
    held = 0 if low is None else int(np.count_nonzero(free_HW < low - 0.5))
    held += 0 if high is None else int(np.count_nonzero(free_HW > high + 0.5))
    if stored_HW.dtype.kind == "u":
        clean_HW = np.clip(np.rint(clean_HW), *limits)
    return clean_HW.astype(stored_HW.dtype), held


def _in_grey_levels(picture_HW: "Tensor", ends: tuple[float | None, float | None]) -> Plane:
    """As 0 to 255 of its own spread, which stripes are looked for in; 0 where it is no number."""
    from nemo_vfm.restore.stripes import at_ends, grey_levels

    black_HW, white_HW = at_ends(picture_HW, *ends)
    low, level = grey_levels(picture_HW, black_HW | white_HW | ~picture_HW.isfinite())
    return np.asarray(((picture_HW - low) / level).nan_to_num_(0, 0, 0).numpy(), np.float32)
