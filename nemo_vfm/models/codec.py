"""Transforms pixels into wavelet coefficients and back without loss: a codec with nothing to train or download.

Haar's wavelet (Mallat 1989) runs along time, then it or a smoother one along height and width. Each level keeps the
mean of two neighbours and half their difference, which add and subtract back almost without rounding. They are scaled
at the end. A level's differences become channels, so that all bands have one size.
Haar's uses two neighbours, so that an error in one block of coefficients ends at the block's border. The biorthogonal
9/7 of Cohen, Daubechies and Feauveau (1992), that of JPEG 2000, overlaps. It is computed by the four lifting steps of
Daubechies and Sweldens (1998, section 7.7) and mirrors the signal at its ends.
Shape letters: B batch, C channels, T frames, H height, W width.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Wavelet = Literal["haar", "cdf97"]
WAVELETS: tuple[str, ...] = get_args(Wavelet)
_STEPS = (-1.586134342059924, -0.052980118572961, 0.882911075530934, 0.443506852043971)
# The scale that makes the 9/7 nearly orthonormal, over the one that makes means and half differences of it.
_SCALE = 1.149604398860241 / math.sqrt(2)


class WaveletCodec:
    """Wavelet codec, lossless unless it leaves bands out.

    Time is causal in Wan's and Cosmos' manner: the first frame has its own latent frame, so an image is a video
    of one frame, and every further latent frame holds 2^levels_time frames.

    Args:
        levels_space: halvings of height and width.
        levels_time: halvings of time; 0 keeps one latent frame a frame.
        wavelet: along height and width: haar, whose blocks show where a network errs, or cdf97, whose bands overlap.
        left_out: finest levels of spatial differences that are not kept: 1 halves the resolution that a latent can
            tell and leaves a quarter of the channels.
        basis: orthonormal (nearly, for cdf97), where noise of a given strength on the latents is `1 / gain` times that
            noise on the pixels, at every scale of detail alike; or mean, where the lowest band has the range of the
            pixels and every difference is half that of two means. Under the mean an object that is smaller than the
            lowest band's pixels drowns in noise early, and short trainings drew backgrounds only.
        gain: factor on all bands.
        detail_gain: further factor on bands with a spatial difference.
        motion_gain: further factor on bands with a temporal difference.
        first_frame_gain: further factor on the first latent frame. It holds one frame where the others hold
            2^levels_time, so in the orthonormal basis it has that much less energy and drowns in noise earlier;
            2^(levels_time / 2) makes up for it.
    """

    def __init__(
        self, *, levels_space: int = 2, levels_time: int = 0, wavelet: Wavelet = "haar", left_out: int = 0,
        basis: Literal["orthonormal", "mean"] = "orthonormal", gain: float = 0.25, detail_gain: float = 1.0,
        motion_gain: float = 1.0, first_frame_gain: float = 1.0,
    ) -> None:  # fmt: skip
        if min(levels_space, levels_time) < 0:
            raise ValueError(f"levels_space ({levels_space}) and levels_time ({levels_time}) must not be negative")
        if basis not in ("orthonormal", "mean"):
            raise ValueError(f"basis must be orthonormal or mean, got {basis!r}")
        if wavelet not in WAVELETS:
            raise ValueError(f"wavelet must be {' or '.join(WAVELETS)}, got {wavelet!r}")
        if not 0 <= left_out <= levels_space:
            raise ValueError(f"left_out ({left_out}) must lie in 0..{levels_space}, the levels_space")
        gains = {
            "gain": gain, "detail_gain": detail_gain, "motion_gain": motion_gain, "first_frame_gain": first_frame_gain,
        }  # fmt: skip
        if not all(0 < value < math.inf for value in gains.values()):
            raise ValueError(f"gains must be positive and finite, got {gains}")
        self.levels_space, self.levels_time, self.basis = levels_space, levels_time, basis
        self.wavelet, self.left_out = wavelet, left_out
        self.gain, self.detail_gain, self.motion_gain = gain, detail_gain, motion_gain
        self.first_frame_gain = first_frame_gain

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1], (B, C, T, H, W), to latents (B, C', T', H', W'); see `latent_shape`."""
        self.latent_shape(video_BCTHW.shape[2], video_BCTHW.shape[3], video_BCTHW.shape[4])
        mean = video_BCTHW
        motion: list[Tensor] = []
        for level in range(self.levels_time):
            # The first frame has no neighbour: it stays as the mean, and its difference is left out.
            pairs, difference = split(mean[:, :, 1:], 2, "haar")
            mean = torch.cat([mean[:, :, :1], pairs], dim=2)
            # Neighbouring frames into channels, place in time slowest, with zeros for the first latent frame.
            frames = 2 ** (self.levels_time - level - 1)
            band = difference.unflatten(2, (-1, frames)).movedim(3, 1).flatten(1, 2)  # type: ignore[no-untyped-call]
            motion.insert(0, F.pad(band, (0, 0, 0, 0, 1, 0)))
        bands = torch.cat([mean, *(self.motion_gain * band for band in motion)], dim=1)
        low = bands
        details: list[Tensor] = []
        for level in range(self.levels_space):
            # The mean of four neighbours, and the horizontal, vertical and diagonal differences as channels.
            rows, row_differences = split(low, 3, self.wavelet)
            low, horizontal = split(rows, 4, self.wavelet)
            band = torch.cat([horizontal, *split(row_differences, 4, self.wavelet)], dim=1)
            # Squares of neighbours into channels, place in the square slowest.
            side, (b, c, t, h, w) = 2 ** (self.levels_space - level - 1), band.shape
            band = band.reshape(b, c, t, h // side, side, w // side, side).permute(0, 4, 6, 1, 2, 3, 5)
            details.insert(0, self.detail_gain * band.reshape(b, c * side**2, t, h // side, w // side))
        latents = self.gain * torch.cat([low, *details], dim=1)
        latents = latents if self.basis == "mean" else latents / self._along(latents)
        kept = latents[:, : latents.shape[1] >> (2 * self.left_out)]
        return _first_frame_times(self.first_frame_gain, kept)

    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """The inverse of `encode`; not clamped."""
        latents = _first_frame_times(1 / self.first_frame_gain, latents_BCTHW)
        latents = F.pad(latents, (0, 0, 0, 0, 0, 0, 0, latents.shape[1] * (4**self.left_out - 1)))
        latents = latents if self.basis == "mean" else latents * self._along(latents)
        latents = latents / self.gain
        channels = latents.shape[1] >> (2 * self.levels_space)
        bands = latents[:, :channels]
        for level in range(self.levels_space):
            band = latents[:, channels << (2 * level) : channels << (2 * level + 2)] / self.detail_gain
            side, (b, c, t, h, w) = 2**level, band.shape
            band = band.reshape(b, side, side, c // side**2, t, h, w).permute(0, 3, 4, 5, 1, 6, 2)
            horizontal, vertical, diagonal = band.reshape(b, c // side**2, t, h * side, w * side).chunk(3, dim=1)
            rows, row_differences = join(bands, horizontal, 4, self.wavelet), join(vertical, diagonal, 4, self.wavelet)
            bands = join(rows, row_differences, 3, self.wavelet)
        channels = bands.shape[1] >> self.levels_time
        mean = bands[:, :channels]
        for level in range(self.levels_time):
            band = bands[:, channels << level : channels << (level + 1)] / self.motion_gain
            parts: Tensor = band[:, :, 1:].unflatten(1, (2**level, -1))  # type: ignore[no-untyped-call]
            difference = parts.movedim(1, 3).flatten(2, 3)
            mean = torch.cat([mean[:, :, :1], join(mean[:, :, 1:], difference, 2, "haar")], dim=2)
        return mean

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W') for an RGB video of this size.

        C' = 3 x 4^(levels_space - left_out) x 2^levels_time, T' = 1 + (T - 1) / 2^levels_time, and height and width
        are divided by 2^levels_space.
        """
        side, frames = 2**self.levels_space, 2**self.levels_time
        what = f"a codec with levels_time {self.levels_time} and levels_space {self.levels_space}"
        channels = 3 * (side >> self.left_out) ** 2 * frames
        return channels, *latent_sides(num_frames, height, width, frames, side, what)

    def fingerprint(self) -> str:
        """All that the latents depend on."""
        return (
            f"wavelet/1 {self.wavelet} space={self.levels_space} time={self.levels_time} left_out={self.left_out} "
            f"basis={self.basis} gain={self.gain!r} "
            f"detail={self.detail_gain!r} motion={self.motion_gain!r} first_frame={self.first_frame_gain!r}"
        )

    def scales(self, num_channels: int = 3) -> Tensor:
        """Each latent channel over its coefficient in the orthonormal basis (nearly so for cdf97), (C', 2).

        Column 0 is for the first latent frame, whose temporal differences are zero and whose mean is of one frame;
        column 1 for the others. Latents divided by these have the energy of the pixels.
        """
        space = [1.0] + [self.detail_gain] * self.levels_space
        time = [1.0] + [self.motion_gain] * self.levels_time
        gains = self.gain * self._spread(space, time, num_channels)[:, None]
        table = gains.expand(-1, 2) if self.basis == "orthonormal" else gains * self._mean_scales(num_channels)
        return table[: len(table) >> (2 * self.left_out)] * torch.tensor([self.first_frame_gain, 1.0])

    def _mean_scales(self, num_channels: int) -> Tensor:
        """Means and half differences over orthonormal coefficients, (C', 2), columns as in `scales`."""
        space = [2.0**-self.levels_space] + [2.0 ** (level - self.levels_space) for level in range(self.levels_space)]
        spans = [2.0 ** ((level - self.levels_time) / 2) for level in range(self.levels_time)]
        first = self._spread(space, [1.0, *spans], num_channels)
        return torch.stack([first, self._spread(space, [2.0 ** (-self.levels_time / 2), *spans], num_channels)], dim=1)

    def _spread(self, space: list[float], time: list[float], num_channels: int) -> Tensor:
        """One number a band (lowest first, then coarse to fine) to one number a latent channel, (C',)."""
        in_space = space[:1] + [value for level, value in enumerate(space[1:]) for _ in range(3 * 4**level)]
        in_time = time[:1] + [value for level, value in enumerate(time[1:]) for _ in range(2**level)]
        table = torch.tensor(in_space)[:, None, None] * torch.tensor(in_time)[None, :, None]
        return table.expand(-1, -1, num_channels).flatten()

    def _along(self, latents_BCTHW: Tensor) -> Tensor:
        """`_mean_scales` along the channels and latent frames of these latents, (1, C', T', 1, 1)."""
        num_channels = latents_BCTHW.shape[1] >> (2 * self.levels_space + self.levels_time)
        first, others = self._mean_scales(num_channels).to(latents_BCTHW).tensor_split(2, dim=1)
        return torch.cat([first, others.expand(-1, latents_BCTHW.shape[2] - 1)], dim=1)[None, :, :, None, None]


def latent_sides(
    num_frames: int, height: int, width: int, time: int, space: int, what: str
) -> tuple[int, int, int]:  # fmt: skip
    """Latent frames, rows and columns of a video: 1 + (T - 1) / time, H / space and W / space.

    ValueError, which says what the size does not fit and which sizes do, where they are not whole.
    """
    if num_frames < 1 or (num_frames - 1) % time:
        below = max(num_frames - 1, 0) // time * time + 1
        raise ValueError(f"{num_frames} frames do not fit {what}: it takes 1 + k * {time} frames; use {below} or "
                         f"{below + time}")  # fmt: skip
    for name, size in (("height", height), ("width", width)):
        if size < 1 or size % space:
            below = max(size // space, 1) * space
            raise ValueError(f"{name} {size} does not fit {what}: it takes multiples of {space}; use {below} or "
                             f"{below + space}")  # fmt: skip
    return 1 + (num_frames - 1) // time, height // space, width // space


def split(x: Tensor, dim: int, wavelet: Wavelet) -> tuple[Tensor, Tensor]:
    """Means and half differences along `dim`, which must have an even length; each half as long."""
    even, odd = x.unflatten(dim, (-1, 2)).unbind(dim + 1)  # type: ignore[no-untyped-call]
    if wavelet == "haar":
        return (even + odd) / 2, (even - odd) / 2
    for a, b in (_STEPS[:2], _STEPS[2:]):
        odd = odd + a * (even + _neighbour(even, dim, "right"))
        even = even + b * (odd + _neighbour(odd, dim, "left"))
    return even * _SCALE, -odd / (2 * _SCALE)


def join(mean: Tensor, difference: Tensor, dim: int, wavelet: Wavelet) -> Tensor:
    """The inverse of `split`."""
    if wavelet == "haar":
        even, odd = mean + difference, mean - difference
    else:
        even, odd = mean / _SCALE, -difference * (2 * _SCALE)
        for a, b in (_STEPS[2:], _STEPS[:2]):
            even = even - b * (odd + _neighbour(odd, dim, "left"))
            odd = odd - a * (even + _neighbour(even, dim, "right"))
    return torch.stack([even, odd], dim=dim + 1).flatten(dim, dim + 1)


def _neighbour(x: Tensor, dim: int, side: Literal["left", "right"]) -> Tensor:
    """Of each on this side; the one at the end is mirrored."""
    if side == "left":
        return torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return torch.cat([x.narrow(dim, 1, x.shape[dim] - 1), x.narrow(dim, -1, 1)], dim)


def _first_frame_times(gain: float, latents_BCTHW: Tensor) -> Tensor:
    if gain == 1.0:
        return latents_BCTHW
    return torch.cat([latents_BCTHW[:, :, :1] * gain, latents_BCTHW[:, :, 1:]], dim=2)
