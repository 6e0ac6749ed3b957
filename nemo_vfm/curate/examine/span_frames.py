"""Tells which frames of a video a span of seconds means."""

from bisect import bisect_left

from nemo_vfm.core.types.media_types import Span
from nemo_vfm.data.video.decode import VideoInfo

_LATE_S = 0.5  # a table often goes by a container's word, which counts sound that ends after the last picture


def frames_of(info: VideoInfo, start_s: float, end_s: float | None) -> tuple[Span, str | None]:
    """The frames that begin in a span, and why they are not all there; None where they are.

    Seconds count from the first frame. A time is that of the frame that begins at most half a frame before it: so
    rounded seconds, such as 0.067 for frame 2 of 30 a second, mean the same frame. A span has at least one frame.

    Args:
        info: of the video.
        start_s: where it begins.
        end_s: where it ends; None is the end of the video.
    """
    first = _frame_at(info, start_s)
    last = info.num_frames if end_s is None else _frame_at(info, end_s)
    is_cut_off = info.missing_frames > info.before_keyframe
    if not is_cut_off and info.num_frames < last <= _frame_at(info, _seconds(info, info.num_frames) + _LATE_S):
        last = info.num_frames
    span = first, max(first + 1, last)
    half_s = float(info.frame_ticks * info.time_base) / 2
    if first in info.holes and end_s is not None and end_s < _seconds(info, first) - half_s:
        span = first - 1, first + 1  # nothing is shown in it: no frame from behind the hole stands in
    if span[1] <= info.num_frames:
        hole = next((hole for hole in info.holes if span[0] < hole < span[1]), None)
        return span, None if hole is None else _of_hole(info, hole)
    there_s = _seconds(info, info.num_frames + info.missing_frames)
    end = "its end" if end_s is None else f"{end_s:g} s"
    lasts = f"it requests {start_s:g} s to {end}, but the video lasts {there_s:.2f} s"
    return span, info.why_incomplete() if span[1] <= info.num_frames + info.missing_frames else lasts


def _of_hole(info: VideoInfo, hole: int) -> str:
    begins, ends = ((pts - info.pts[0]) * float(info.time_base) for pts in (info.end_pts(hole - 1), info.stamp(hole)))
    return f"it spans a gap: there are no frames from {begins:.2f} s to {ends:.2f} s"


def _seconds(info: VideoInfo, frame: int) -> float:
    return float((info.stamp(frame) - info.pts[0]) * info.time_base)


def _frame_at(info: VideoInfo, seconds: float) -> int:
    """The first frame that begins at this time or later, or earlier by less than half a frame."""
    stamp = info.pts[0] + seconds / float(info.time_base)
    step = info.frame_ticks
    if stamp > info.stamp(info.num_frames):
        return info.num_frames + round((stamp - info.stamp(info.num_frames)) / step)
    at = bisect_left(range(info.num_frames + 1), stamp, key=info.stamp)
    before = info.stamp(at - 1) if at else stamp - step
    return at - 1 if stamp - before < min(step, info.stamp(at) - before) / 2 else at
