"""Measures how the camera moves between neighbouring frames, as numbers and as a word.

Shape letters: P points, D 2 (right, down), H height, W width.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Luma
from nemo_vfm.curate.record.footage import ClipFrames

_NUMBERS = ("pan_x", "pan_y", "zoom", "roll", "residual", "shake")
_WORDS = (
    "static", "pan left", "pan right", "tilt up", "tilt down", "zoom out", "zoom in", "roll left", "roll right",
    "shaky", "moving", "unknown",
)  # fmt: skip
_SMALLEST_PX = 16
_FEWEST_POINTS = 8
_ENOUGH = (cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, 15, 0.01)  # steps, pixels
_LOCK_PX = 0.75  # a point that lies this near to where the camera's motion takes it moves with the picture


class CameraStep(NamedTuple):
    """The camera's motion from one frame to the next."""

    pan_x: float  #: part of the width that it turns to the right
    pan_y: float  #: part of the height that it turns down
    zoom: float  #: by how much larger things get, as a natural logarithm
    roll: float
    residual: float  #: mean distance of points from where this motion takes them, in pixels
    total: float  #: mean distance that points went, in pixels

    def edge_speed(self) -> tuple[float, float, float, float]:
        """How fast each of the four moves the picture, where it moves it most: parts of a side."""
        return self.pan_x, self.pan_y, self.zoom / 2, self.roll / 2


class CameraMotion:
    """How the camera moves: a similarity (shift, scale, turn) that most corners of a frame follow into the next one.

    `camera.pan_x` and `camera.pan_y` are percent of the width and height a second, to the right and down: the camera's,
    so that the picture goes the other way. `camera.zoom` is the relative growth a second, `camera.roll` degrees a
    second clockwise, all four means over the clip. `camera.residual` is the part of the corners' way, 0 to 1, that the
    camera does not explain. `camera.shake` is the median change of speed from frame to frame, in percent of the sides a
    second. `camera` is the word for the median of all pairs: static below `still`; shaky where speeds change by more
    than 0.4 of themselves; else what makes 0.75 of all motion, or moving; unknown where corners can be followed in less
    than half of the pairs.

    A camera that travels sideways pans, one that travels forward zooms: parallax is in the residual.

    Args:
        still: percent of the sides a second that a static camera does not exceed.
        num_pairs: pairs of neighbouring frames that are looked at; every other is looked at for a third frame.
        max_points: corners that are followed.
    """

    def __init__(self, *, still: float = 1.0, num_pairs: int = 16, max_points: int = 80) -> None:
        if still <= 0 or num_pairs < 1:
            raise ValueError(f"still {still} must be above 0 and num_pairs {num_pairs} at least 1")
        if max_points < _FEWEST_POINTS:
            raise ValueError(f"max_points is {max_points}, but it must be at least {_FEWEST_POINTS}")
        self.still, self.num_pairs, self.max_points = still, num_pairs, max_points

    def columns(self) -> Sequence[str]:
        return (*(f"camera.{name}" for name in _NUMBERS), "camera")

    def labels(self) -> Mapping[str, Sequence[str]]:
        """The words that `camera` may be."""
        return {"camera": _WORDS}

    def measure(self, footage: ClipFrames) -> Mapping[str, float | str]:
        """The scores of one clip; an image has none."""
        if footage.is_image:
            return {}
        height, width = footage.luma(footage.pairs(self.num_pairs)[:1]).shape[1:]
        if min(height, width) < _SMALLEST_PX:
            raise ValueError(
                f"the picture is {width}x{height}, too small to track corners; at least {_SMALLEST_PX} are needed"
            )
        # Of each pair its step and maybe the next one; none where corners were lost.
        pairs = footage.pairs(self.num_pairs)
        tracks = []
        for place, (first, second) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
            third = [second + 1] if place % 2 == 0 and second + 1 < footage.num_frames else []
            tracks.append(self._follow(list(footage.luma([first, second, *third]))))
        steps = [step for track in tracks for step in track[:1]]
        if 2 * len(steps) < len(tracks):
            return {**dict.fromkeys((f"camera.{name}" for name in _NUMBERS), 0.0), "camera": "unknown"}
        pan_x, pan_y, zoom, roll, residual, total = np.mean(steps, axis=0).tolist()
        speeds = 100 * footage.fps * np.array([step.edge_speed() for step in steps])
        # The median change of speed from one frame to the next, in parts of a side a frame.
        changes = [np.subtract(track[1].edge_speed(), track[0].edge_speed()) for track in tracks if len(track) == 2]
        shake = 100 * footage.fps * (float(np.median(np.linalg.norm(changes, axis=1))) if changes else 0.0)
        return {
            "camera.pan_x": 100 * footage.fps * pan_x,
            "camera.pan_y": 100 * footage.fps * pan_y,
            "camera.zoom": footage.fps * zoom,
            "camera.roll": footage.fps * float(np.degrees(roll)),
            "camera.residual": min(1.0, residual / total) if total > 0.05 else 0.0,
            "camera.shake": shake,
            "camera": _word(speeds, shake, self.still),
        }

    def _follow(self, luma_THW: Sequence[Luma]) -> list[CameraStep]:
        corners = cv2.goodFeaturesToTrack(luma_THW[0], self.max_points, 0.01, minDistance=min(luma_THW[0].shape) / 20)
        steps: list[CameraStep] = []
        for before, after in pairwise(luma_THW):
            if corners is None or len(corners) < _FEWEST_POINTS:
                break
            # Where those corners lie in both frames that were found again (pyramidal Lucas-Kanade).
            corners = np.asarray(corners, dtype=np.float32)
            moved, found, _ = cv2.calcOpticalFlowPyrLK(  # type: ignore[call-overload]
                before, after, corners, None, winSize=(15, 15), maxLevel=3, criteria=_ENOUGH
            )
            at_PD, to_PD = (points[found.ravel() > 0].reshape(-1, 2) for points in (corners, moved))
            if len(at_PD) < _FEWEST_POINTS:
                break
            # The camera's part in points that went from here to there; the track ends where they do not agree.
            height, width = before.shape
            centre_D = np.array((width / 2, height / 2))
            matrix, _ = cv2.estimateAffinePartial2D(at_PD - centre_D, to_PD - centre_D, ransacReprojThreshold=_LOCK_PX)
            if matrix is None:
                break
            off_P = np.linalg.norm((at_PD - centre_D) @ matrix[:, :2].T + matrix[:, 2] - (to_PD - centre_D), axis=1)
            if (off_P < 2 * _LOCK_PX).mean() < 0.4:
                break
            zoom, turn = np.log(np.hypot(matrix[0, 0], matrix[1, 0])), np.arctan2(matrix[1, 0], matrix[0, 0])
            way = float(np.linalg.norm(to_PD - at_PD, axis=1).mean())
            pan = -matrix[0, 2] / width, -matrix[1, 2] / height
            steps.append(CameraStep(*pan, float(zoom), -float(turn), float(off_P.mean()), way))
            corners = to_PD.reshape(-1, 1, 2)
        return steps


def _word(speeds: NDArray[np.float64], shake: float, still: float) -> str:
    """One word for speeds of (steps, 4), in percent of the sides a second."""
    activity = float(np.median(np.linalg.norm(speeds, axis=1)))  # a passer-by who fills the picture takes a few along
    if max(activity, shake / 2) < still:
        return "static"
    if shake > max(0.4 * activity, 2 * still):
        return "shaky"
    middle = np.median(speeds, axis=0)
    most = int(np.abs(middle).argmax())
    if abs(middle[most]) < 0.75 * activity:
        return "moving"
    return _WORDS[1 + 2 * most + int(middle[most] > 0)]
