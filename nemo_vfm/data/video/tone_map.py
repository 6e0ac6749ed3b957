"""Converts frames to RGB, HDR ones (PQ or HLG) to SDR: BT.709, with a Moebius curve that rolls highlights off.

Shape letters: H height, W width, C colours (RGB).
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frame, Transfer

if TYPE_CHECKING:  # who reads pictures alone needs no PyAV
    import av
    from av.video.reformatter import VideoReformatter

_TRANSFERS: dict[int, Transfer] = {16: "pq", 18: "hlg"}
_WHITE = 203.0  # cd/m2 of diffuse white (BT.2408)
_KNEE = 0.7  # of diffuse white; what is darker keeps its luminance
# cd/m2 that become 255: the most that a signal can say. Films' own metadata are often absent or wrong, and a peak of
# 600 instead of 10,000 would make diffuse white 240 instead of 238.
_PEAK: dict[Transfer, float] = {"pq": 10_000.0, "hlg": 1000.0}
_SDR_GAMMA = 2.4  # BT.1886
_HLG_GAMMA = 1.2  # BT.2100, for a display of 1,000 cd/m2
_LUMA = (0.2627, 0.6780, 0.0593)  # BT.2020
_UNKNOWN, _BT2020 = 2, 9
# Linear RGB of these primaries to BT.709's (BT.2087 for BT.2020); others are taken for BT.2020.
_TO_BT709 = {
    1: ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    _BT2020: (
        (1.66049100, -0.58764114, -0.07284986),
        (-0.12455047, 1.13289990, -0.00834942),
        (-0.01815076, -0.10057890, 1.11872966),
    ),
    12: (
        (1.22494018, -0.22494018, 0.0),
        (-0.04205695, 1.04205695, 0.0),
        (-0.01963755, -0.07863605, 1.09827360),
    ),  # P3 D65
}
_MAX = 65_535
_ROWS = 64  # at once: of a whole frame of 8K indices alone would fill 800 MB


def transfer_of(number: int) -> Transfer:
    """What a transfer characteristic of ITU-T H.273 is called here; whatever is not PQ or HLG is SDR."""
    return _TRANSFERS.get(number, "sdr")


def rgb_of(frame: "av.VideoFrame", scaler: "VideoReformatter", *, sdr_format: str = "rgb24", **size: Any) -> Frame:
    """A decoder's frame as SDR, (H, W, 3) RGB.

    Args:
        scaler: one for all frames of a video keeps its tables.
        sdr_format: what the scaler makes of frames that are SDR: rgb24, or gbrp.
        size: width, height and interpolation, where it is to be scaled.
    """
    transfer = transfer_of(frame.color_trc)
    # One thread where this PyAV can be told; an older one has no more there.
    how = size | ({"threads": 1} if "threads=" in (scaler.reformat.__doc__ or "") else {})
    if transfer == "sdr":
        return np.asarray(scaler.reformat(frame, format=sdr_format, **how).to_ndarray(), np.uint8)
    if frame.colorspace == _UNKNOWN:
        frame.colorspace = _BT2020
    deep_HWC = scaler.reformat(frame, format="gbrp16le", **how).to_ndarray()
    return tone_mapped(np.asarray(deep_HWC, np.uint16), transfer, frame.color_primaries)


def tone_mapped(rgb_HWC: NDArray[np.uint16], transfer: Transfer, primaries: int = _BT2020) -> Frame:
    """Coded RGB of 16 bits, full range, as BT.709 of 8 bits, shown as BT.1886.

    Each of R, G and B goes through the curve by itself. Colours outside of BT.709 are clipped. 1080p takes 20 ms of a
    core for PQ and 30 ms for HLG (2026-11).

    Args:
        transfer: pq or hlg.
        primaries: their number in H.273.
    """
    matrix = np.array(_TO_BT709.get(primaries, _TO_BT709[_BT2020]), np.float32)
    luma = np.array([_LUMA], np.float32) / _MAX**2
    to_light, to_sdr = _light(transfer), _curve(_PEAK[transfer] / _WHITE)
    out_HWC = np.empty(rgb_HWC.shape, np.uint8)
    for top in range(0, len(rgb_HWC), _ROWS):
        light_HWC = to_light.take(rgb_HWC[top : top + _ROWS])
        bt709_HWC = np.maximum(cv2.transform(light_HWC, matrix), 0)
        if transfer == "hlg":  # the OOTF of BT.2100: what a display makes of a scene's light
            bt709_HWC *= cv2.pow(cv2.transform(light_HWC, luma), _HLG_GAMMA - 1)[..., None]
        codes_HWC = np.minimum(np.sqrt(bt709_HWC), _MAX).astype(np.uint16)
        out_HWC[top : top + _ROWS] = to_sdr.take(codes_HWC)
    return out_HWC


@cache
def _light(transfer: Transfer) -> NDArray[np.float32]:
    """Of each code its light, of HLG before the OOTF, so that the square root of the peak's is the last code."""
    code = np.arange(_MAX + 1) / _MAX
    if transfer == "pq":  # SMPTE ST 2084
        root = code ** (32 / 2523)
        light = (np.maximum(root - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * root)) ** (8192 / 1305)
    else:  # ARIB STD-B67
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    return (light * _MAX**2).astype(np.float32)


@cache
def _curve(peak: float) -> NDArray[np.uint8]:
    """SDR of light x in steps of its square root, so that shadows get enough of them; at diffuse white x is 1.

    Up to the knee x stays, and from there a Moebius transformation of the same slope leads to 1 at the peak.
    """
    x = peak * (np.arange(_MAX + 1) / _MAX) ** 2
    j = _KNEE
    a = -j * j * (peak - 1) / (j * j - 2 * j + peak)
    b = (j * j - 2 * j * peak + peak) / (peak - 1)
    rolled = (b * b + 2 * b * j + j * j) / (b - a) * (x + a) / (x + b)
    return np.round(255 * np.where(x <= j, x, np.minimum(rolled, 1)) ** (1 / _SDR_GAMMA)).astype(np.uint8)
