"""Measures the shares of damaged, interlaced and missing frames, and whether they are HDR, by the decoder's reports."""

from collections.abc import Mapping, Sequence
from typing import get_args

from nemo_vfm.core.types.media_types import Transfer
from nemo_vfm.curate.record.footage import ClipFrames


class DecoderFlags:
    """`corrupt_ratio`, `interlaced_ratio` and `repeated_ratio`, each 0 to 1, and `transfer`, as the file has them.

    A frame is corrupt where the decoder or the container says so, and so are all that follow up to the next keyframe,
    since they are predicted from it. Damage that happens to decode is not seen. Interlaced frames have been
    deinterlaced; of a variable frame rate, `repeated_ratio` of the frames that are written repeat the one before.
    `transfer` is pq or hlg where a frame was HDR, which has been tone-mapped, and else sdr.
    """

    results_revision = 2

    def columns(self) -> Sequence[str]:
        return ("corrupt_ratio", "interlaced_ratio", "repeated_ratio", "transfer")

    def labels(self) -> Mapping[str, Sequence[str]]:
        """The words of `transfer`."""
        return {"transfer": get_args(Transfer)}

    def measure(self, footage: ClipFrames) -> Mapping[str, float | str]:
        """The scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        report = footage.decoder_report
        return {
            "corrupt_ratio": report.corrupt, "interlaced_ratio": report.interlaced, "repeated_ratio": report.repeated,
            "transfer": report.transfer,
        }  # fmt: skip
