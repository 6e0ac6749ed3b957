"""Splits shots where hue, saturation and value change by more than a threshold."""

from nemo_vfm.curate.split.finder import Finder, MinSpacing, Peaks
from nemo_vfm.curate.split.flash import WithoutFlashes
from nemo_vfm.curate.split.shot_lengths import Lengths, ShortTail, SplitsByGlances, check_lengths


class ContentSplit(SplitsByGlances):
    """Cuts where the content score reaches a threshold, unless the picture returns soon after.

    The score is that of PySceneDetect's ContentDetector; the threshold is the best of its authors' sweep. Fast motion
    crosses it too: `AdaptiveSplit` takes the neighbours into account.

    Args:
        threshold: mean change of hue, saturation and value from one frame to the next, 0 to 255.
        flash_s: a picture that returns within this time, in seconds, was lit by a flash; below `min_length_s`. 0 makes
            every crossing a cut.
        min_length_s: the minimum distance of two cuts, in seconds.
        max_length_s: longer shots are cut into pieces of this length, in seconds.
        short_tail: a remainder of a long shot that is shorter than `min_tail_s`: merge it into the previous piece,
            or leave it.
        min_tail_s: in seconds.
        trim_s: seconds trimmed on each side of every cut, 0 to 10; the ledger counts them as dropped by
            `transition`. None trims nothing.
    """

    def __init__(
        self,
        *,
        threshold: float = 31.0,
        flash_s: float = 0.5,
        min_length_s: float = 0.6,
        max_length_s: float = 20.0,
        short_tail: ShortTail = "merge",
        min_tail_s: float = 1.0,
        trim_s: float | None = 0.0,
    ) -> None:
        if threshold <= 0:
            raise ValueError(f"threshold must be above 0, got {threshold}: every frame would be a cut")
        if not 0 <= flash_s <= min_length_s:
            raise ValueError(f"flash_s must be between 0 and min_length_s {min_length_s}, got {flash_s}")
        check_lengths(min_length_s=min_length_s, max_length_s=max_length_s, min_tail_s=min_tail_s, trim_s=trim_s)
        self.threshold, self.flash_s = threshold, flash_s
        self.min_length_s, self.max_length_s = min_length_s, max_length_s
        self.short_tail, self.min_tail_s, self.trim_s = short_tail, min_tail_s, trim_s

    def plan(self, fps: float) -> tuple[Finder, Lengths]:
        """See `SplitsByGlances`; at most `flash_s` behind."""
        lengths = self.lengths(fps, gradual=False)
        finder: Finder = Peaks(1.0, 0, self.threshold)
        if flash := round(self.flash_s * fps):
            finder = WithoutFlashes(finder, flash)
        return MinSpacing(finder, lengths.min_frames), lengths
