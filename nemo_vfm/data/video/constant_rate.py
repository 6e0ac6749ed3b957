"""Computes one constant rate for frames with time stamps, and how often each is shown at that rate."""

import numpy as np

from nemo_vfm.core.types.media_types import Span
from nemo_vfm.data.video.decode import VideoInfo


def rate_of(info: VideoInfo, span: Span) -> float:
    """Frames per second: the file's, or the span's own where they would end more than half a frame apart.

    So as many frames last as long as the time stamps say, also where a file changes its rate on the way.
    """
    num_frames = span[1] - span[0]
    seconds = float((info.end_pts(span[1] - 1) - info.pts[span[0]]) * info.time_base)
    return info.fps if abs(seconds * info.fps - num_frames) <= 0.5 else num_frames / seconds


def times_shown(info: VideoInfo, span: Span) -> list[int]:
    """How often each frame of the span comes in as many ticks of its rate: 1 wherever stamps are within half a tick.

    Of a variable rate some come again and others not at all; the sum is the number of frames.
    """
    num_frames = span[1] - span[0]
    stamps = np.asarray(info.pts[slice(*span)], np.int64)
    seconds = (stamps - stamps[0]) * float(info.time_base)
    halves = (np.arange(num_frames) + 0.5) / rate_of(info, span)
    seen = np.searchsorted(seconds, halves) - 1
    return [int(count) for count in np.bincount(seen, minlength=num_frames)]


def repeated_ratio(info: VideoInfo, span: Span) -> float:
    """The share of the ticks at which nothing new is seen."""
    return float(np.mean([count == 0 for count in times_shown(info, span)]))
