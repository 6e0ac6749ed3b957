"""Measures sharpness, exposure, contrast, noise, blocks, colour, flicker and entropy of frames, without weights.

Shape letters: T frames, H height, W width, C colours (RGB), F frequencies.
"""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.record.footage import ClipFrames

_SMALLEST_BLOCKY_PX = 64
_LONGEST = 8.4  # pixels between lines of the grid: 8 where the frame has its own size, less where it was made smaller
_SHORTEST = 2.2  # finer than this it looks like the next frequency down
_LENGTH = 2048
_LARGEST_STEP = 24  # luma steps: what is larger is an edge of the picture, and would drown the grid
_FAINT = 0.3  # luma steps: in a black picture less than this makes any pattern
_SMOOTH = 3  # luma steps two and three pixels away
_AROUND = np.array([[1, 1, 0, 0, 0, 1, 1]], np.uint8)
_SPREAD = ("laplacian", "tenengrad", "contrast", "noise", "colourfulness", "entropy")
_NOISE = np.array([1.0, -2.0, 1.0])  # in both directions: what is left of a picture is what no plane explains
_LEVELS = np.arange(256)
_SMALLEST_PX = 16
_OF_MEDIAN = 1.4826  # standard deviation over median of absolute values, of a normal distribution


def blockiness(luma_THW: Sequence[Frames]) -> float:
    """By how much pixels differ more across the lines of a grid than elsewhere, as an amplitude; 0 is none.

    The ratio of steps on and off every eighth column, the usual measure, cannot be taken of frames that were made
    smaller, where the grid has another distance and lies between pixels. But it still makes the steps, averaged along
    each column where the picture is smooth, a periodic row, of the same period across as down. So the period is looked
    for: the one whose harmonics are strongest in the weaker of both spectra.

    Measured with JPEG on three films at 256, 480 and 720 lines (2026-11): clean at most 0.08, quality 30 at least 0.17,
    quality 15 at least 0.42. At 1080 lines the grid is finer than the small frame's pixels and little is left of it;
    below 64 pixels nothing is looked for.
    """
    height, width = luma_THW[0].shape
    if min(height, width) < _SMALLEST_BLOCKY_PX:
        return 0.0
    across, down = np.zeros(width - 1), np.zeros(height - 1)
    for luma_HW in luma_THW:
        across += _steps(luma_HW[:, 1:], luma_HW[:, :-1], axis=0)
        down += _steps(luma_HW[1:], luma_HW[:-1], axis=1)
    amplitudes_F = np.minimum(_spectrum(across), _spectrum(down))
    # The largest mean amplitude of a frequency and those of its harmonics that can be told.
    near_F = np.maximum.reduce([np.roll(amplitudes_F, shift) for shift in (-1, 0, 1)])
    tones = np.arange(int(_LENGTH / _LONGEST), int(_LENGTH / _SHORTEST))
    places = tones[:, None] * np.arange(1, 5)
    known = places < _LENGTH // 2 - 4
    total = (near_F[np.minimum(places, _LENGTH // 2)] * known).sum(axis=1)
    # A tone without harmonics is easily the picture's own, so it counts less.
    return float((total / known.sum(axis=1) * np.where(known.sum(axis=1) == 1, 0.7, 1.0)).max())


def _steps(one_HW: Frames, other_HW: Frames, axis: int) -> NDArray[np.float64]:
    """Mean step between neighbours at each place, of those that lie alone in a smooth part of the picture."""
    steps_HW = cv2.absdiff(one_HW, other_HW)
    around_HW = cv2.dilate(steps_HW, _AROUND if axis == 0 else _AROUND.T)
    smooth_HW = np.asarray(cv2.threshold(around_HW, _SMOOTH, 255, cv2.THRESH_BINARY_INV)[1])
    alone_HW = cv2.bitwise_and(cv2.threshold(steps_HW, _LARGEST_STEP, 0, cv2.THRESH_TRUNC)[1], smooth_HW)
    total, count = (cv2.reduce(x, axis, cv2.REDUCE_SUM, dtype=cv2.CV_64F) for x in (alone_HW, smooth_HW))
    return np.asarray(total / np.maximum(count / 255, 1)).ravel()


def _spectrum(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amplitudes (F,) of the row of steps, relative to its neighbourhood."""
    around = cv2.blur(steps[None], (15, 1), borderType=cv2.BORDER_REFLECT).ravel()
    relative = np.clip((steps - around) / np.maximum(around, _FAINT), -3, 3)
    window = np.hanning(len(steps))
    return np.asarray(np.abs(np.fft.rfft(relative * window, _LENGTH)) * 2 / window.sum())


class TechnicalQuality:
    """How well the picture is taken and encoded, on the footage's frames (short side at most 256 pixels).

    Over frames `.mean`, `.min` and `.p10`, the tenth percentile, of: `quality.laplacian`, the variance of the luma's
    Laplacian; `quality.tenengrad`, the mean square of its Sobel gradient; `quality.contrast`, its standard deviation
    (RMS contrast), 0 to 127.5; `quality.noise`, the standard deviation of white noise in luma steps (Immerkaer 1996),
    which fine texture raises; `quality.colourfulness` (Hasler and Suesstrunk 2003, section 7), 0 is grey;
    `quality.entropy` of the luma in bits, 0 to 8.

    One number a clip: `quality.dark` and `quality.bright`, the parts of pixels with luma under 16 and over 235;
    `quality.blockiness`, see there; `quality.flicker`, how much the mean luma changes from frame to frame beyond what
    a fade does, as the standard deviation of white flicker.

    Args:
        num_frames: frames that are used, spread over the clip.
    """

    def __init__(self, *, num_frames: int = 16) -> None:
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}, but it must be at least 1")
        self.num_frames = num_frames

    def columns(self) -> Sequence[str]:
        spread = [f"quality.{name}.{part}" for name in _SPREAD for part in ("mean", "min", "p10")]
        return (*spread, "quality.dark", "quality.bright", "quality.blockiness", "quality.flicker")

    def measure(self, footage: ClipFrames) -> Mapping[str, float]:
        """The scores of one clip; an image has no flicker."""
        numbers = footage.pairs(self.num_frames)[::2]
        rgb_THWC, luma_THW = footage.frames(numbers), list(footage.luma(numbers))
        height, width = luma_THW[0].shape
        if min(height, width) < _SMALLEST_PX:
            raise ValueError(f"the picture is {width}x{height}, too small to judge; at least {_SMALLEST_PX} are needed")
        counts = [cv2.calcHist([luma_HW], [0], None, [256], [0, 256]) for luma_HW in luma_THW]
        # The part of pixels at each of the 256 levels.
        parts_T256 = np.stack([np.asarray(count, np.float64).ravel() for count in counts]) / luma_THW[0].size
        mean_T = parts_T256 @ _LEVELS
        levels_T: dict[str, Sequence[float] | NDArray[np.float64]] = {
            "laplacian": [
                float(cv2.meanStdDev(cv2.Laplacian(luma_HW, cv2.CV_16S))[1][0, 0]) ** 2 for luma_HW in luma_THW
            ],
            "tenengrad": [
                sum(cv2.norm(cv2.Sobel(luma_HW, cv2.CV_16S, *way), cv2.NORM_L2SQR) for way in ((1, 0), (0, 1)))
                / luma_HW.size
                for luma_HW in luma_THW
            ],
            "contrast": np.asarray(np.sqrt(np.maximum(0, parts_T256 @ _LEVELS**2 - mean_T**2))),
            "noise": [  # Immerkaer 1996
                float(np.sqrt(np.pi / 2)) / 6 * cv2.norm(rest_HW, cv2.NORM_L1) / rest_HW.size
                for rest_HW in (cv2.sepFilter2D(luma_HW, cv2.CV_16S, _NOISE, _NOISE) for luma_HW in luma_THW)
            ],
            "colourfulness": [_colourfulness(rgb_HWC) for rgb_HWC in rgb_THWC],
            "entropy": -(parts_T256 * np.log2(np.where(parts_T256 > 0, parts_T256, 1))).sum(axis=1) + 0.0,
        }
        scores: dict[str, float] = {}
        for column, of_T in levels_T.items():
            values = {"mean": np.mean(of_T), "min": np.min(of_T), "p10": np.percentile(of_T, 10)}
            scores |= {f"quality.{column}.{part}": float(value) for part, value in values.items()}
        return {
            **scores,
            "quality.dark": float(parts_T256[:, :16].sum(axis=1).mean()),
            "quality.bright": float(parts_T256[:, 236:].sum(axis=1).mean()),
            "quality.blockiness": blockiness(luma_THW),
            **({} if footage.is_image else {"quality.flicker": _flicker(footage, self.num_frames)}),
        }


def _colourfulness(rgb_HWC: Frames) -> float:
    """Of every other pixel, which changes it by less than one part in a hundred."""
    red, green, blue = cv2.split(rgb_HWC[::2, ::2].astype(np.float32))
    means, deviations = zip(*(cv2.meanStdDev(x) for x in (red - green, (red + green) / 2 - blue)), strict=True)
    return float(np.linalg.norm(deviations) + 0.3 * np.linalg.norm(means))


def _flicker(footage: ClipFrames, num_pairs: int) -> float:
    """From second differences of mean luma at every other pair: 0 in fades, 6 s^2 in white flicker.

    Their median, since a cut or a flash among them is no flicker.
    """
    seconds = footage.pairs(num_pairs)[1::4]
    numbers = [(n - 1, n, n + 1) for n in seconds if 0 < n < footage.num_frames - 1]
    bends = []
    for three in numbers:
        before, here, after = (cv2.mean(luma_HW)[0] for luma_HW in footage.luma(three))
        bends.append(before - 2 * here + after)
    return float(_OF_MEDIAN * np.median(np.abs(bends)) / np.sqrt(6)) if bends else 0.0
