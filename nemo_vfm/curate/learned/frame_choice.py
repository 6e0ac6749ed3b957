"""Chooses the frames that a learned stage gets, by a clip's length and rate."""

import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames


def per_second(num_frames: int, fps: float, rate: float, at_most: int) -> list[int]:
    """The same frames as `ClipFrames.per_second`, of a clip whose frames are elsewhere."""
    return ClipFrames(num_frames, fps, lambda numbers: np.empty((0, 0, 0, 3), np.uint8)).per_second(rate, at_most)


def evenly(num_frames: int, count: int) -> list[int]:
    """The same frames as `ClipFrames.evenly`."""
    return ClipFrames(num_frames, 1.0, lambda numbers: np.empty((0, 0, 0, 3), np.uint8)).evenly(count)
