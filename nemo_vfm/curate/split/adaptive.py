"""Splits shots at hard cuts by how far a change stands out, and at fades through black by brightness."""

from nemo_vfm.curate.split.finder import AnyOf, Black, Finder, MinSpacing, Peaks
from nemo_vfm.curate.split.shot_lengths import Lengths, ShortTail, SplitsByGlances, check_lengths


class AdaptiveSplit(SplitsByGlances):
    """Cuts where a frame differs from the previous one far more than its neighbours do from theirs.

    The rule of PySceneDetect's AdaptiveDetector, computed from fewer pixels; its settings here are the best of
    its authors' sweep on BBC and AutoShot. It does not see slow fades, so stretches of black are cut by brightness: a
    long one is a separate shot, which a rule can drop, a short one is cut in its middle.

    Args:
        ratio: difference of a frame over the mean of its neighbours' that makes a cut.
        window: neighbours on each side.
        min_length_s: the minimum distance of two cuts, in seconds.
        max_length_s: longer shots are cut into pieces of this length, in seconds.
        short_tail: a remainder of a long shot that is shorter than `min_tail_s`: merge it into the previous piece,
            or leave it, so that a rule on duration_s can drop it.
        min_tail_s: in seconds.
        trim_s: seconds trimmed on each side of every cut, 0 to 10, in addition to a whole fade through black; the
            ledger counts them as dropped by `transition`. None trims nothing.
        black: mean of R, G and B, 0 to 255, below which a frame is black.
        min_content: mean change of hue, saturation and value, 0 to 255, below which nothing is a cut.
    """

    def __init__(
        self,
        *,
        ratio: float = 3.5,
        window: int = 3,
        min_length_s: float = 0.6,
        max_length_s: float = 20.0,
        short_tail: ShortTail = "merge",
        min_tail_s: float = 1.0,
        trim_s: float | None = 0.0,
        black: float = 12.0,
        min_content: float = 15.0,
    ) -> None:
        if ratio <= 1 or window < 1:
            raise ValueError(f"ratio must be above 1 and window at least 1, got {ratio} and {window}")
        check_lengths(min_length_s=min_length_s, max_length_s=max_length_s, min_tail_s=min_tail_s, trim_s=trim_s)
        self.ratio, self.window, self.black, self.min_content = ratio, window, black, min_content
        self.min_length_s, self.max_length_s = min_length_s, max_length_s
        self.short_tail, self.min_tail_s, self.trim_s = short_tail, min_tail_s, trim_s

    def plan(self, fps: float) -> tuple[Finder, Lengths]:
        """See `SplitsByGlances`; at most `min_length_s`, 1.5 s and `window` frames behind."""
        lengths = self.lengths(fps, gradual=True)
        hard = MinSpacing(Peaks(self.ratio, self.window, self.min_content), lengths.min_frames)
        return AnyOf(hard, Black(self.black, lengths.min_frames), lengths.min_frames), lengths
