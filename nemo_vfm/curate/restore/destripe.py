# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Clips with stripes, scratches or curtains in, clips without them out; clips without stripes are left as they are.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.restore.luma import luma
from nemo_vfm.restore.stripe_excess import stripe_excess_db

if TYPE_CHECKING:
    from torch import Tensor

Channels = Literal["luma", "rgb"]


class Destripe:
    """Finds stripes by their excess of power in one direction, and takes them out (arXiv 1901.08001).

    Stripes wider than half a period of `kmin` cycles are taken for shading and stay.

    Args:
        theta_deg: direction of the stripes, counter-clockwise from vertical, 0 to 180; `auto` finds it.
        wedge_deg: opening angle of the wedge of frequencies that is recovered; a narrow one harms least.
        kmin: cycles per picture below which nothing is touched.
        iterations: rounds of recovery; 12 take about 0.1 s a 256x256 frame on a CPU's core.
        descent: how far each round goes down the total variation, above 0 up to 0.3.
        mode: per_frame where stripes move or change; static where they belong to the sensor: they are then recovered
            once, from the median of the frames looked at, and subtracted, which takes no time and flickers not.
        channels: luma takes grey stripes out of the brightness; rgb does each colour, in three times the time.
        min_excess_db: excess from which a clip has stripes. Real footage without had up to 3.0, with stripes of sigma 5
            of 255 at least 8.2, of sigma 3 at least 5.3.
    """

    def __init__(
        self, *, theta_deg: float | Literal["auto"] = "auto", wedge_deg: float = 5.0, kmin: float = 15.0,
        iterations: int = 12, descent: float = 0.2, mode: Literal["per_frame", "static"] = "per_frame",
        channels: Channels = "luma", min_excess_db: float = 5.0,
    ) -> None:  # fmt: skip
        if theta_deg != "auto" and not 0 <= theta_deg <= 180:
            raise ValueError(f"theta_deg is {theta_deg}, but directions go from 0 to 180 degrees")
        if not 0 < wedge_deg <= 90:
            raise ValueError(f"wedge_deg is {wedge_deg}, but a wedge opens by more than 0 and at most 90 degrees")
        if kmin < 1:
            raise ValueError(f"kmin is {kmin}, but below 1 cycle per picture the mean brightness would be lost")
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}, but at least 1 is needed")
        if not 0 < descent <= 0.3:
            raise ValueError(f"descent is {descent}, but it converges from above 0 to 0.3")
        self.theta_deg, self.wedge_deg, self.kmin = theta_deg, wedge_deg, kmin
        self.iterations, self.descent, self.mode = iterations, descent, mode
        self.channels, self.min_excess_db = channels, min_excess_db

    def columns(self) -> Sequence[str]:
        """See `Restorer`."""
        return ("stripe_excess_db", "stripe_excess_after_db", "stripe_theta_deg")

    def look(self, frames_THWC: NDArray[np.uint8]) -> "Destriped | None":
        """See `Restorer`."""
        excess_A = stripe_excess_db(luma(frames_THWC))
        theta = int(excess_A.argmax()) if self.theta_deg == "auto" else round(self.theta_deg) % 180
        before = float(excess_A[theta])
        if before < self.min_excess_db:
            return None
        recovery = Recovery(self, float(theta) if self.theta_deg == "auto" else self.theta_deg, frames_THWC.shape[1:3])
        restoration = Destriped(recovery, frames_THWC if self.mode == "static" else None)
        after = float(stripe_excess_db(luma(restoration.apply(frames_THWC)))[theta])
        restoration.found = {"stripe_excess_db": before, "stripe_excess_after_db": after, "stripe_theta_deg": theta}
        return restoration


class Recovery:
    """Stripes of frames of one size and direction.

    Args:
        settings: how to recover.
        theta_deg: the direction.
        size: height and width.
    """

    def __init__(self, settings: Destripe, theta_deg: float, size: tuple[int, ...]) -> None:
        from nemo_vfm.restore.stripes import known_frequencies

        self._settings = settings
        self._known = known_frequencies(
            *size, theta_deg=theta_deg, wedge_deg=settings.wedge_deg, kmin=settings.kmin
        )  # fmt: skip

    def stripes(self, frame_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What is to be subtracted, (H, W, C), or (H, W, 1) where it is the same of all colours."""
        import torch

        from nemo_vfm.restore.stripes import recover

        planes_HWC = luma(frame_HWC[None])[0, :, :, None] if self._settings.channels == "luma" else frame_HWC
        striped_CHW = torch.from_numpy(np.ascontiguousarray(planes_HWC.transpose(2, 0, 1), dtype=np.float32))
        with _one_thread():
            restored_CHW: Tensor = recover(
                striped_CHW, self._known, iterations=self._settings.iterations, descent=self._settings.descent
            )
        return np.asarray((striped_CHW - restored_CHW).numpy().transpose(1, 2, 0), np.float32)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A process a core does this work, so more threads stand in each other's way; the bits are the same."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Destriped:
    """See `Restoration`. A frame comes out the same whatever frames are given with it.

    Args:
        recovery: finds a frame's stripes.
        sample_THWC: frames whose median holds the stripes of all; None looks for each frame's own.
    """

    def __init__(self, recovery: Recovery, sample_THWC: NDArray[np.uint8] | None) -> None:
        self._recovery = recovery
        self._fixed = None
        if sample_THWC is not None:
            median_HWC = np.median(sample_THWC, axis=0).round().astype(np.uint8)
            self._fixed = recovery.stripes(median_HWC)
        self.found: dict[str, float] = {}

    def apply(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """See `Restoration`."""
        out = np.empty_like(frames_THWC)
        for frame, target in zip(frames_THWC, out, strict=True):
            stripes = self._recovery.stripes(frame) if self._fixed is None else self._fixed
            target[:] = np.clip(frame - stripes, 0, 255).round()
        return out

    def facts(self) -> Mapping[str, float]:
        """See `Restoration`."""
        return self.found
