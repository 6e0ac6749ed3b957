"""Finds frames that show the same picture cropped or scaled, by SIFT keypoints and a small copy of the frame.

Two frames are registered by their keypoints (Lowe 2004): pairs of near descriptors vote for one scale and shift. The
small copies are then compared where they overlap, since a studio's backdrop alone has the same keypoints.
Shape letters: H height, W width, N keypoints, B bytes of a descriptor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Points = NDArray[np.float32]

SHORT_SIDE_PX = 192  # the side at which keypoints are looked for; a crop to a third still has some
MOST = 64  #: keypoints of a frame
NUM_BITS = 128
THUMB_PX = 16
_RATIO = 0.8  # of the distances to the nearest and the next descriptor; above, they are as good as chance
LEAST = 8  # pairs that agree on one scale and shift; unrelated frames reach 6
_REPROJECTION_PX = 4.0
_SCALES = (0.3, 3.4)
_MAX_TURN = 0.1  # radians; a handheld copy of a screen may be turned a little
_OVERLAP = 0.25  # of the smaller picture, at least
_NOISE = 40.0  # variance (8-bit levels) below which a picture says little
#: Of SIFT's 128 numbers those that are compared: (2, NUM_BITS).
_PAIRS = np.random.default_rng(0).permuted(np.tile(np.arange(128), (NUM_BITS, 1)), axis=1)[:, :2].T


@dataclass(frozen=True, slots=True)
class FrameKeypoints:
    """What is kept of a frame."""

    points_N2: Points  #: x and y of keypoints, in shares of the width and the height
    #: their descriptors, a bit for each of `NUM_BITS` pairs of SIFT's numbers: which of the two is larger
    bits_NB: Bytes
    thumb_HWC: Bytes  #: the frame, `THUMB_PX` a side, RGB
    aspect: float  #: width over height


@dataclass(frozen=True, slots=True)
class Place:
    """Where one frame lies in another: `other = scale * this + shift`, in heights of the other frame."""

    scale: float
    shift_x: float
    shift_y: float


def describe(frame_HWC: Bytes) -> FrameKeypoints:
    """The keypoints and the small copy of an RGB frame."""
    height, width = frame_HWC.shape[:2]
    scale = min(1.0, SHORT_SIDE_PX / min(height, width))
    size = max(8, round(width * scale)), max(8, round(height * scale))
    small = cv2.resize(frame_HWC, size, interpolation=cv2.INTER_AREA)
    sift = cv2.SIFT.create(nfeatures=MOST, contrastThreshold=0.02)
    points, numbers = sift.detectAndCompute(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), None)
    places = np.array([point.pt for point in points[:MOST]], np.float32).reshape(-1, 2)
    places /= np.array(size, np.float32)
    first, second = _PAIRS
    found = np.zeros((0, 128), np.float32) if numbers is None else numbers[:MOST]
    thumb = cv2.resize(small, (THUMB_PX, THUMB_PX), interpolation=cv2.INTER_AREA)
    return FrameKeypoints(
        places, np.packbits(found[:, first] > found[:, second], axis=1), np.asarray(thumb), width / height
    )


def register(a: FrameKeypoints, b: FrameKeypoints) -> Place | None:
    """Where `a` lies in `b`, by their keypoints; None where they share no picture."""
    if min(len(a.points_N2), len(b.points_N2)) < LEAST:
        return None
    found = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(a.bits_NB, b.bits_NB, k=2)
    near = [one for one, next_ in found if one.distance < _RATIO * next_.distance]
    if len(near) < LEAST:
        return None
    chosen = (a, [one.queryIdx for one in near]), (b, [one.trainIdx for one in near])
    from_N2, to_N2 = (one.points_N2[at] * np.array([one.aspect, 1], np.float32) for one, at in chosen)  # in heights
    reach = _REPROJECTION_PX / SHORT_SIDE_PX
    matrix, inside = cv2.estimateAffinePartial2D(from_N2, to_N2, ransacReprojThreshold=reach, maxIters=500)
    # Places are counted, not keypoints: many of one bright spot say no more than one does.
    if matrix is None or len(np.unique((to_N2[inside.ravel() > 0] / (2 * reach)).astype(np.int64), axis=0)) < LEAST:
        return None
    scale, turn = float(np.hypot(*matrix[:, 0])), float(np.arctan2(matrix[1, 0], matrix[0, 0]))
    if not (_SCALES[0] < scale < _SCALES[1] and abs(turn) < _MAX_TURN):
        return None
    return Place(scale, float(matrix[0, 2]), float(matrix[1, 2]))


def agreement(a: FrameKeypoints, b: FrameKeypoints, place: Place) -> float:
    """How equal the small copies are where they overlap, -1 to 1; 0 where they hardly do."""
    across = place.scale * a.aspect / b.aspect
    matrix = np.array([[across, 0, place.shift_x / b.aspect * THUMB_PX], [0, place.scale, place.shift_y * THUMB_PX]])
    size = (THUMB_PX, THUMB_PX)
    moved = cv2.warpAffine(a.thumb_HWC, matrix, size, flags=cv2.INTER_AREA)
    inside = cv2.warpAffine(np.ones(size, np.uint8), matrix, size, flags=cv2.INTER_NEAREST) > 0
    smaller = min(1.0, across * place.scale) * THUMB_PX**2
    if inside.sum() < _OVERLAP * smaller or inside.sum() < 16:
        return 0.0
    x, y = (cv2.cvtColor(thumb, cv2.COLOR_RGB2YCrCb)[inside].astype(np.float32) for thumb in (moved, b.thumb_HWC))
    x[:, 0] -= x[:, 0].mean()
    y[:, 0] -= y[:, 0].mean()
    x[:, 1:], y[:, 1:] = 2 * (x[:, 1:] - 128), 2 * (y[:, 1:] - 128)
    power = np.square(x).sum(axis=1).mean() + np.square(y).sum(axis=1).mean()
    return float(2 * (x * y).sum(axis=1).mean() / (power + 2 * _NOISE))


_HEAD = np.dtype([("keypoints", "u1"), ("aspect", "<f4")])
_POINTS = 255  # steps of a side at which keypoints are kept


def as_bytes(frames: Sequence[FrameKeypoints]) -> bytes:
    """The frames one after another: head, points, descriptors, small copy."""
    parts = []
    for frame in frames:
        head = np.array([(len(frame.points_N2), frame.aspect)], _HEAD)
        points = np.rint(frame.points_N2 * _POINTS).astype(np.uint8)
        parts += [head.tobytes(), points.tobytes(), frame.bits_NB.tobytes(), frame.thumb_HWC.tobytes()]
    return b"".join(parts)


def from_bytes(data: bytes) -> list[FrameKeypoints]:
    """What `as_bytes` wrote.

    Raises:
        ValueError: it is something else.
    """
    frames, at = [], 0
    thumb = THUMB_PX * THUMB_PX * 3
    while at < len(data):
        head = np.frombuffer(data, _HEAD, 1, at)[0]
        count, at = int(head["keypoints"]), at + _HEAD.itemsize
        points = np.frombuffer(data, np.uint8, count * 2, at).reshape(-1, 2)
        bits = np.frombuffer(data, np.uint8, count * NUM_BITS // 8, at + count * 2).reshape(-1, NUM_BITS // 8)
        at += count * (2 + NUM_BITS // 8)
        small = np.frombuffer(data, np.uint8, thumb, at).reshape(THUMB_PX, THUMB_PX, 3)
        frames.append(
            FrameKeypoints(points.astype(np.float32) / np.float32(_POINTS), bits, small, float(head["aspect"]))
        )
        at += thumb
    return frames
