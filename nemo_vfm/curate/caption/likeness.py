"""Embeds texts and the frames of a clip in one space, where a caption lies near its own clip.

Shape letters: N texts, D width of a vector, T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.optional import needs_gpu, needs_packages
from nemo_vfm.curate.caption.check_captions import Vectors, unit
from nemo_vfm.models.pretrained import fingerprint_of

_HUES = {"red": 0, "orange": 15, "yellow": 30, "green": 60, "cyan": 90, "blue": 120, "purple": 140, "pink": 160}


@needs_gpu()
@needs_packages("transformers")
class ClipLikeness:
    """A CLIP or SigLIP from a local folder.

    Args:
        folder: as `save_pretrained` writes it: config.json, safetensors, tokenizer and picture processor.
    """

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder

    def fingerprint(self) -> str:
        """The bytes of the model."""
        return fingerprint_of(self.folder)

    def of_texts(self, texts: Sequence[str]) -> Vectors:
        """The text tower's vector of each."""
        from nemo_vfm.models.text_image import text_vectors

        return np.asarray(text_vectors(self.folder, texts).numpy(), np.float32)

    def of_frames(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The mean of the picture tower's vectors, each of length 1."""
        from nemo_vfm.models.text_image import picture_vectors

        mean: NDArray[np.float32] = unit(picture_vectors(self.folder, frames_THWC).numpy()).mean(axis=0)
        return mean


class NamedColours:
    """Words for colours and light, against the colours and the light there are: no weights, and blind to all else.

    It can judge captions that name colours, such as those of synthetic films. On captions of other kinds its verdict is
    that it cannot tell.
    """

    def of_texts(self, texts: Sequence[str]) -> Vectors:
        """1 at each hue that is named, and at dark and bright."""
        words = [*_HUES, "dark", "bright"]
        split = [set("".join(c if c.isalpha() else " " for c in text.lower()).split()) for text in texts]
        return np.array([[float(word in found) for word in words] for found in split], np.float32)

    def of_frames(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The share of vivid pixels nearest to each hue, the dark share and the bright share."""
        import cv2

        pixels = cv2.cvtColor(frames_THWC.reshape(1, -1, 3), cv2.COLOR_RGB2HSV)[0].astype(int)
        vivid = pixels[(pixels[:, 1] > 90) & (pixels[:, 2] > 60), 0]
        hues = np.array(list(_HUES.values()))
        apart = np.abs(vivid[:, None] - hues[None])
        nearest = np.minimum(apart, 180 - apart).argmin(1)
        shares = np.bincount(nearest, minlength=len(hues)) / max(1, len(pixels))
        light = pixels[:, 2]
        return np.array([*shares, (light < 50).mean(), (light > 200).mean()], np.float32)
