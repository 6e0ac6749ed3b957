"""Measures the part of the picture that bars cover."""

from collections.abc import Mapping, Sequence

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.restore.letterbox import picture_box

_NUM_PAIRS = 16  # whose first frames are looked at, as other stages do


class Letterbox:
    """`letterbox.ratio`: the part of the picture, 0 to 1, that lies in bars at its sides.

    The same kinds of bars that `conf/restore/letterbox.yaml` crops, found in the small frames of this clip alone. A
    title on a black background has none.
    """

    def columns(self) -> Sequence[str]:
        return ("letterbox.ratio",)

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The score of one clip."""
        luma_THW = footage.luma(footage.pairs(_NUM_PAIRS)[::2])
        box = picture_box(luma_THW)
        if box is None:
            return {"letterbox.ratio": 0.0}
        return {"letterbox.ratio": 1 - (box.right - box.left) * (box.bottom - box.top) / luma_THW[0].size}
