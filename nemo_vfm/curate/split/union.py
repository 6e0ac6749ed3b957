"""Splits frames at hard cuts that are not flashes, fades through black, dissolves and wipes."""

from nemo_vfm.curate.split.dissolve import APART_S, DissolveLimits, Dissolves
from nemo_vfm.curate.split.finder import AnyOf, Black, Finder, MinSpacing, Peaks
from nemo_vfm.curate.split.flash import WithoutFlashes
from nemo_vfm.curate.split.shot_lengths import Lengths, ShortTail, SplitsByGlances, check_lengths
from nemo_vfm.curate.split.wipe import WipeLimits


class UnionSplit(SplitsByGlances):
    """Joins the cuts of several finders, each where the previous ones found nothing near.

    First, frames that stand out as in `AdaptiveSplit`, unless the picture returns within `flash_s`; then stretches of
    black; then dissolves, where a picture is the mean of two different others.

    Args:
        ratio: difference of a frame over the mean of its neighbours' that makes a cut.
        window: neighbours on each side.
        min_content: mean change of hue, saturation and value, 0 to 255, below which nothing is a hard cut.
        flash_s: a picture that returns within this time, in seconds, was lit by a flash; below `min_length_s`.
        black: mean of R, G and B, 0 to 255, below which a frame is black.
        dissolve: mean difference, 0 to 255, of the pictures before and after a dissolve; None finds no dissolves and
            no wipes.
        wipes: also find wipes: straight ones in any direction, and irises.
        min_length_s: the minimum distance of two cuts, in seconds.
        max_length_s: longer shots are cut into pieces of this length, in seconds.
        short_tail: a remainder of a long shot that is shorter than `min_tail_s`: merge it into the previous piece,
            or leave it.
        min_tail_s: in seconds.
        trim_s: seconds trimmed on each side of every cut, 0 to 10, in addition to a whole dissolve, fade or wipe; the
            ledger counts them as dropped by `transition`. None trims nothing.
    """

    results_revision = 3

    def __init__(
        self,
        *,
        ratio: float = 3.5,
        window: int = 3,
        min_content: float = 15.0,
        flash_s: float = 0.5,
        black: float = 12.0,
        dissolve: float | None = 15.0,
        wipes: bool = True,
        min_length_s: float = 0.6,
        max_length_s: float = 20.0,
        short_tail: ShortTail = "merge",
        min_tail_s: float = 1.0,
        trim_s: float | None = 0.0,
    ) -> None:
        if ratio <= 1 or window < 1:
            raise ValueError(f"ratio must be above 1 and window at least 1, got {ratio} and {window}")
        if not 0 <= flash_s <= min_length_s:
            raise ValueError(f"flash_s must be between 0 and min_length_s {min_length_s}, got {flash_s}: a picture "
                             f"that returns later than that was another shot")  # fmt: skip
        check_lengths(min_length_s=min_length_s, max_length_s=max_length_s, min_tail_s=min_tail_s, trim_s=trim_s)
        self.ratio, self.window, self.min_content, self.flash_s = ratio, window, min_content, flash_s
        self.black, self.dissolve, self.wipes = black, dissolve, wipes
        self.min_length_s, self.max_length_s = min_length_s, max_length_s
        self.short_tail, self.min_tail_s, self.trim_s = short_tail, min_tail_s, trim_s

    def plan(self, fps: float) -> tuple[Finder, Lengths]:
        """See `SplitsByGlances`; at most 5.5 seconds and `min_length_s` behind."""
        lengths = self.lengths(fps, gradual=True)
        min_frames = lengths.min_frames
        peaks: Finder = Peaks(self.ratio, self.window, self.min_content)
        if flash := round(self.flash_s * fps):
            peaks = WithoutFlashes(peaks, flash)
        found: Finder = AnyOf(MinSpacing(peaks, min_frames), Black(self.black, min_frames), min_frames)
        if self.dissolve is None:
            return found, lengths
        gradual = Dissolves(fps, DissolveLimits(jump=self.dissolve), WipeLimits() if self.wipes else None)
        return AnyOf(found, gradual, max(min_frames, round(APART_S * fps))), lengths
