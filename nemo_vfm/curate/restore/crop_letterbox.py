"""Crops bars from clips.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.record.footage import luma
from nemo_vfm.restore.letterbox import PixelBox, picture_box


class Letterbox:
    """Crops bars: black ones, grey or white pairs, and blurred copies of the picture at two sides.

    All clips of a file get one box, unless its bars change for 10 s or more. A clip with picture content outside the
    box, such as subtitles in a bar, is not cropped, nor is one of which less than 30 % would remain.
    """

    def columns(self) -> Sequence[str]:
        """See `Restorer`; pixels of the full picture."""
        return ("letterbox.left", "letterbox.top", "letterbox.width", "letterbox.height")

    def look(self, frames_THWC: NDArray[np.uint8]) -> "Crop | None":
        box = picture_box(luma(frames_THWC))
        return None if box is None else Crop(box)

    def crop(self, picture: Sequence[int] | None) -> "Crop | None":
        return None if picture is None else Crop(PixelBox(*picture))


@dataclass(frozen=True, slots=True)
class Crop:
    """See `Restoration`. Only the borders of frames change."""

    box: PixelBox

    def apply(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        box = self.box
        return np.ascontiguousarray(frames_THWC[:, box.top : box.bottom, box.left : box.right])

    def facts(self) -> Mapping[str, float]:
        box = self.box
        return {
            "letterbox.left": box.left, "letterbox.top": box.top,
            "letterbox.width": box.right - box.left, "letterbox.height": box.bottom - box.top,
        }  # fmt: skip
