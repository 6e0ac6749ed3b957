# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the shares of frames that are damaged, interlaced or missing from their time, by the decoder's reports."""

from collections.abc import Mapping, Sequence

from nemo_vfm.curate.examine.footage import ClipFrames


class DecoderFlags:
    """`corrupt_ratio`, `interlaced_ratio` and `repeated_ratio`, of frames as the file has them, each 0 to 1.

    A frame is corrupt where the decoder or the container says so, and so are all that follow up to the next keyframe,
    since they are predicted from it. Damage that happens to decode is not seen. Interlaced frames have been
    deinterlaced; of a variable frame rate, `repeated_ratio` of the frames that are written repeat the one before.
    """

    def columns(self) -> Sequence[str]:
        """The three scores."""
        return ("corrupt_ratio", "interlaced_ratio", "repeated_ratio")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        told = footage.told
        return {
            "corrupt_ratio": told.corrupt, "interlaced_ratio": told.interlaced, "repeated_ratio": told.repeated,
        }  # fmt: skip
