# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Pixels in, wavelet coefficients out, and back without loss: a codec with nothing to train or download.

Haar's wavelet (Mallat 1989) along time, then along height and width. Each level keeps the mean of two neighbours and
half their difference, so the lowest band is a small video in the range of the pixels; a level's differences are moved
into channels, so that all bands have one size.
Shape letters: B batch, C channels, T frames, H height, W width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class HaarWavelet:
    """Lossless wavelet codec.

    Time is causal in Wan's and Cosmos' manner: the first frame has a latent frame of its own, so an image is a video
    of one frame, and every further latent frame holds 2^levels_time frames.

    Args:
        levels_space: halvings of height and width.
        levels_time: halvings of time; 0 keeps one latent frame a frame.
        gain: factor on all bands; 1 leaves the lowest band in the range of the pixels, [-1, 1].
        detail_gain: further factor on bands with a spatial difference. Differences of neighbours are an order of
            magnitude smaller than pixels, so with a gain of 1 a little noise already hides them.
        motion_gain: further factor on bands with a temporal difference.

    Raises:
        ValueError: negative levels, or a gain that cannot be undone.
    """

    def __init__(
        self,
        *,
        levels_space: int = 2,
        levels_time: int = 0,
        gain: float = 1.0,
        detail_gain: float = 2.0,
        motion_gain: float = 2.0,
    ) -> None:
        if min(levels_space, levels_time) < 0:
            raise ValueError(f"levels_space ({levels_space}) and levels_time ({levels_time}) must not be negative")
        if not all(0 < value < math.inf for value in (gain, detail_gain, motion_gain)):
            raise ValueError(
                f"gain ({gain}), detail_gain ({detail_gain}), motion_gain ({motion_gain}) must be positive and finite"
            )
        self.levels_space, self.levels_time = levels_space, levels_time
        self.gain, self.detail_gain, self.motion_gain = gain, detail_gain, motion_gain

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1], (B, C, T, H, W), to latents (B, C 4^ls 2^lt, 1 + (T - 1) / 2^lt, H / 2^ls, W / 2^ls)."""
        self.latent_shape(video_BCTHW.shape[2], video_BCTHW.shape[3], video_BCTHW.shape[4])
        mean = video_BCTHW
        motion: list[Tensor] = []
        for level in range(self.levels_time):
            mean, difference = _split_time(mean)
            motion.insert(0, _time_to_channels(difference, self.levels_time - level - 1))
        bands = torch.cat([mean, *(self.motion_gain * band for band in motion)], dim=1)
        return self.gain * self._encode_space(bands)

    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """The inverse of `encode`; not clamped."""
        bands = self._decode_space(latents_BCTHW / self.gain)
        channels = bands.shape[1] >> self.levels_time
        mean = bands[:, :channels]
        for level in range(self.levels_time):
            band = bands[:, channels << level : channels << (level + 1)] / self.motion_gain
            mean = _join_time(mean, _channels_to_time(band, level))
        return mean

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W') for an RGB video of this size.

        Raises:
            ValueError: the size does not fit; the text says which sizes do.
        """
        side, frames = 2**self.levels_space, 2**self.levels_time
        if num_frames < 1 or (num_frames - 1) % frames:
            below = max(num_frames - 1, 0) // frames * frames + 1
            raise ValueError(
                f"{num_frames} frames do not fit a codec with levels_time {self.levels_time}: it takes "
                f"1 + k * {frames} frames, such as {below} or {below + frames}"
            )
        for name, size in (("height", height), ("width", width)):
            if size < 1 or size % side:
                below = max(size // side, 1) * side
                raise ValueError(
                    f"{name} {size} does not fit a codec with levels_space {self.levels_space}: it takes multiples of "
                    f"{side}, such as {below} or {below + side}"
                )
        return 3 * side**2 * frames, 1 + (num_frames - 1) // frames, height // side, width // side

    def fingerprint(self) -> str:
        """All that the latents depend on."""
        return (
            f"haar/1 space={self.levels_space} time={self.levels_time} gain={self.gain!r} "
            f"detail={self.detail_gain!r} motion={self.motion_gain!r}"
        )

    def scales(self, num_channels: int = 3) -> Tensor:
        """Each latent channel over its coefficient in the orthonormal Haar basis, (C', 2).

        Column 0 is for the first latent frame, whose temporal differences are zero and whose mean is of one frame;
        column 1 for the others. Latents divided by these have the energy of the pixels.
        """
        time = [(1.0, 2.0 ** (-self.levels_time / 2))]
        for level in range(self.levels_time):
            span = 2.0 ** (-(self.levels_time - level) / 2)
            time += [(self.motion_gain * span, self.motion_gain * span)] * 2**level
        space = [2.0**-self.levels_space]
        for level in range(self.levels_space):
            space += [self.detail_gain * 2.0 ** -(self.levels_space - level)] * (3 * 4**level)
        table = torch.tensor(space)[:, None, None, None] * torch.tensor(time)[None, :, None, :]
        return self.gain * table.expand(-1, -1, num_channels, -1).flatten(0, 2)

    def _encode_space(self, low: Tensor) -> Tensor:
        details: list[Tensor] = []
        for level in range(self.levels_space):
            low, band = _split_space(low)
            details.insert(0, self.detail_gain * _space_to_channels(band, self.levels_space - level - 1))
        return torch.cat([low, *details], dim=1)

    def _decode_space(self, latents: Tensor) -> Tensor:
        channels = latents.shape[1] >> (2 * self.levels_space)
        low = latents[:, :channels]
        for level in range(self.levels_space):
            band = latents[:, channels << (2 * level) : channels << (2 * level + 2)] / self.detail_gain
            low = _join_space(low, _channels_to_space(band, level))
        return low


def _split(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Means and half differences of neighbours along `dim`."""
    even, odd = x.unflatten(dim, (-1, 2)).unbind(dim + 1)  # type: ignore[no-untyped-call]
    return (even + odd) / 2, (even - odd) / 2


def _join(mean: Tensor, difference: Tensor, dim: int) -> Tensor:
    return torch.stack([mean + difference, mean - difference], dim=dim + 1).flatten(dim, dim + 1)


def _split_time(x_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
    """The first frame has no neighbour: it stays as the mean, and its difference is left out."""
    mean, difference = _split(x_BCTHW[:, :, 1:], 2)
    return torch.cat([x_BCTHW[:, :, :1], mean], dim=2), difference


def _join_time(mean_BCTHW: Tensor, difference_BCTHW: Tensor) -> Tensor:
    return torch.cat([mean_BCTHW[:, :, :1], _join(mean_BCTHW[:, :, 1:], difference_BCTHW, 2)], dim=2)


def _time_to_channels(difference_BCTHW: Tensor, levels: int) -> Tensor:
    """2^levels neighbouring frames into channels (place in time slowest), with zeros for the first latent frame."""
    x = difference_BCTHW.unflatten(2, (-1, 2**levels)).movedim(3, 1).flatten(1, 2)  # type: ignore[no-untyped-call]
    return F.pad(x, (0, 0, 0, 0, 1, 0))


def _channels_to_time(band_BCTHW: Tensor, levels: int) -> Tensor:
    x: Tensor = band_BCTHW[:, :, 1:].unflatten(1, (2**levels, -1))  # type: ignore[no-untyped-call]
    return x.movedim(1, 3).flatten(2, 3)


def _split_space(x_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of four neighbours, and the horizontal, vertical and diagonal differences as channels."""
    rows, row_differences = _split(x_BCTHW, 3)
    mean, horizontal = _split(rows, 4)
    vertical, diagonal = _split(row_differences, 4)
    return mean, torch.cat([horizontal, vertical, diagonal], dim=1)


def _join_space(mean: Tensor, band: Tensor) -> Tensor:
    horizontal, vertical, diagonal = band.chunk(3, dim=1)
    return _join(_join(mean, horizontal, 4), _join(vertical, diagonal, 4), 3)


def _space_to_channels(band_BCTHW: Tensor, levels: int) -> Tensor:
    """Squares of 2^levels neighbours into channels, place in the square slowest."""
    side = 2**levels
    b, c, t, h, w = band_BCTHW.shape
    x = band_BCTHW.reshape(b, c, t, h // side, side, w // side, side).permute(0, 4, 6, 1, 2, 3, 5)
    return x.reshape(b, c * side**2, t, h // side, w // side)


def _channels_to_space(band_BCTHW: Tensor, levels: int) -> Tensor:
    side = 2**levels
    b, c, t, h, w = band_BCTHW.shape
    x = band_BCTHW.reshape(b, side, side, c // side**2, t, h, w).permute(0, 3, 4, 5, 1, 6, 2)
    return x.reshape(b, c // side**2, t, h * side, w * side)
