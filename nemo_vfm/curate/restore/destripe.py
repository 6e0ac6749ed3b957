"""Removes stripes, scratches and curtains from clips; clips without stripes stay as they are.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.record.footage import luma
from nemo_vfm.restore.scratches import find_scratches
from nemo_vfm.restore.stripe_excess import StripeExcess, require_wedge
from nemo_vfm.restore.stripes import refine_deg

Channels = Literal["luma", "rgb"]
Mode = Literal["auto", "per_frame", "static"]

_ALIKE = 0.9  # correlation of the stripes of frames of one clip, from which they are the same


class Destripe:
    """Removes stripes, found by their excess of power in one direction (arXiv 1901.08001), and scratches.

    Stripes wider than half a period of `kmin` cycles count as shading and stay. In a picture without stripes, it looks
    for upright scratches that are at the same place in all frames and at least half as long as the picture is high. A
    line of the scene is no scratch: it hides what is behind it.

    Args:
        theta_deg: direction of the stripes, counter-clockwise from vertical, 0 to 180; `auto` finds it.
        wedge_deg: opening angle of the wedge of frequencies that is recovered; a narrow one harms least.
        kmin: frequencies below this, in cycles per picture, are not changed.
        mode: per_frame if stripes move or change; static if they belong to the sensor: they are then recovered once per
            clip and subtracted, which is fast and does not flicker; auto chooses static if the first, the middle and
            the last frame have the same stripes.
        channels: luma removes grey stripes from the brightness; rgb treats each colour, which takes three times as
            long.
        min_excess_db: a clip with at least this excess has stripes. Real footage without stripes had up to 3.0, with
            stripes of sigma 5 of 255 at least 8.2, of sigma 3 at least 5.3. Stripes in half of the picture need 3 dB
            more.
    """

    def __init__(
        self, *, theta_deg: float | Literal["auto"] = "auto", wedge_deg: float = 5.0, kmin: float = 15.0,
        mode: Mode = "auto", channels: Channels = "luma", min_excess_db: float = 5.0,
    ) -> None:  # fmt: skip
        require_wedge(theta_deg, wedge_deg, kmin)
        if mode not in ("auto", "per_frame", "static"):
            raise ValueError(f"mode is {mode!r}; known are auto, per_frame and static")
        self.theta_deg, self.wedge_deg, self.kmin = theta_deg, wedge_deg, kmin
        self.mode, self.channels, self.min_excess_db = mode, channels, min_excess_db

    def columns(self) -> Sequence[str]:
        return ("stripe_excess_db", "stripe_excess_after_db", "stripe_theta_deg", "scratches")

    def look(self, frames_THWC: NDArray[np.uint8]) -> "StripeRemover | None":
        luma_THW = luma(frames_THWC)
        excess = StripeExcess.of(luma_THW)
        if (found := excess.strongest_direction(self.theta_deg, self.min_excess_db)) is not None:
            theta, bands = found
            exact = refine_deg(luma_THW, theta) if self.theta_deg == "auto" else theta
            recovery = Recovery(self, exact, frames_THWC.shape[1:3], bands)
            restoration = StripeRemover(recovery, self._still(recovery, frames_THWC))
            after = StripeExcess.of(luma(restoration.apply(frames_THWC)))
            before_db, after_db = (one.of_stripes_db(theta, bands) for one in (excess, after))
            restoration.found = {"stripe_excess_db": before_db, "stripe_excess_after_db": after_db,
                                 "stripe_theta_deg": round(theta) % 180}  # fmt: skip
            return restoration
        if self.theta_deg not in ("auto", 0, 180) or (scratches := find_scratches(luma_THW)) is None:
            return None
        restoration = StripeRemover(None, scratches.added_HW[..., None])
        restoration.found = {"scratches": scratches.count}
        return restoration

    def _still(self, recovery: "Recovery", frames_THWC: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        """The stripes common to all frames; None if each frame has its own."""
        if self.mode == "per_frame":
            return None
        chosen = sorted({0, len(frames_THWC) // 2, len(frames_THWC) - 1})
        found = np.stack([recovery.stripes(frames_THWC[place], fill=False) for place in chosen])
        # |a - b|^2 = |a|^2 + |b|^2 - 2 r |a| |b|; sums of a matrix product would depend on how many threads share them.
        # A single frame proves nothing.
        flat = found.reshape(len(found), -1)
        lengths = [float(cv2.norm(one)) for one in flat]
        is_alike = len(flat) > 1 and all(
            lengths[0] ** 2 + length**2 - float(cv2.norm(flat[0], one)) ** 2 >= 2 * _ALIKE * lengths[0] * length
            for length, one in zip(lengths[1:], flat[1:], strict=True)
        )
        if self.mode == "auto" and not is_alike:
            return None
        stripes_HWC = np.asarray(found.mean(0), np.float32)
        # Pixels black in every frame, such as in letterbox bars: stripes could not darken them.
        black_HW1, white_HW1 = frames_THWC.max((0, 3))[..., None] == 0, frames_THWC.min((0, 3))[..., None] == 255
        stripes_HWC[(black_HW1 & (stripes_HWC < 0)) | (white_HW1 & (stripes_HWC > 0))] = 0
        return stripes_HWC


class Recovery:
    """Stripes of frames of one size and direction."""

    def __init__(self, settings: Destripe, theta_deg: float, size: tuple[int, ...], bands: int) -> None:
        from nemo_vfm.restore.stripes import known_frequencies

        self._settings, self._theta_deg, self._bands = settings, theta_deg, bands
        self._known = known_frequencies(
            *size, theta_deg=theta_deg, wedge_deg=settings.wedge_deg, kmin=settings.kmin
        )  # fmt: skip

    def stripes(self, frame_HWC: NDArray[np.uint8], *, fill: bool) -> NDArray[np.float32]:
        """What to subtract, (H, W, C), or (H, W, 1) if it is the same for all colours.

        Args:
            fill: where stripes drove this frame to black or white, fill it from its surroundings.
        """
        import torch

        from nemo_vfm.restore.stripes import stripes, without

        planes_HWC = luma(frame_HWC[None])[0, :, :, None] if self._settings.channels == "luma" else frame_HWC
        found = []
        # One process per core does this work, so more threads would only compete; the bits are the same.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for plane_HW in planes_HWC.transpose(2, 0, 1):
                striped_HW = torch.from_numpy(plane_HW.astype(np.float32))
                stripes_HW = stripes(
                    striped_HW, self._known, theta_deg=self._theta_deg, kmin=self._settings.kmin, bands=self._bands,
                    black=0, white=255,
                )  # fmt: skip
                filled_HW = without(striped_HW, stripes_HW, black=0, white=255) if fill else None
                found.append((stripes_HW if filled_HW is None else striped_HW - filled_HW).numpy())
        finally:
            torch.set_num_threads(num_threads)
        return np.stack(found, axis=-1)


class StripeRemover:
    """See `Restoration`. A frame comes out the same whatever frames are given with it.

    Args:
        recovery: finds a frame's stripes; None where they are given.
        fixed_HWC: what to subtract from every frame, (H, W, C) or (H, W, 1); None looks for each frame's own.
    """

    def __init__(self, recovery: Recovery | None, fixed_HWC: NDArray[np.float32] | None) -> None:
        assert recovery is not None or fixed_HWC is not None
        self._recovery = recovery
        self._fixed = None if fixed_HWC is None else _round_levels(fixed_HWC)
        self.found: dict[str, float] = {}

    def apply(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        out = np.empty_like(frames_THWC)
        for frame, target in zip(frames_THWC, out, strict=True):
            fixed, recovery = self._fixed, self._recovery
            if fixed is None:
                assert recovery is not None
                fixed = _round_levels(recovery.stripes(frame, fill=True))
            cv2.subtract(frame, fixed, dst=target, dtype=cv2.CV_8U)  # within 0 and 255
        return out

    def facts(self) -> Mapping[str, float]:
        return self.found


def _round_levels(stripes_HWC: NDArray[np.float32]) -> NDArray[np.int16]:
    """In grey levels, of three colours."""
    whole = np.rint(stripes_HWC).astype(np.int16)
    return np.ascontiguousarray(np.broadcast_to(whole, (*whole.shape[:2], 3)))
