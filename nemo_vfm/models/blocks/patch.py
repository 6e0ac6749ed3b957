"""Cuts latents into patches, projects those to tokens, and puts patches back into latents.

Shape letters: B batch, C channels, T frames, H height, W width, S tokens, P numbers
of a patch, D width of a token.
"""

from torch import Tensor, nn

from nemo_vfm.parallel.layers.linear import Linear

Patch = tuple[int, int, int]


def grid_of(shape: tuple[int, ...], patch: Patch) -> tuple[int, int, int]:
    """Tokens along time, height and width for latents of this (B, C, T, H, W) shape.

    Raises:
        ValueError: a side is not a multiple of the patch.
    """
    for name, size, side in zip(("frames", "height", "width"), shape[2:], patch, strict=True):
        if size % side:
            raise ValueError(
                f"latents of shape {tuple(shape)} cannot be cut into patches of {patch}: {name} {size} is not "
                f"divisible by {side}; use {max(size // side, 1) * side} or {(size // side + 1) * side}"
            )
    t, h, w = (size // side for size, side in zip(shape[2:], patch, strict=True))
    return t, h, w


def patches(latents_BCTHW: Tensor, patch: Patch) -> Tensor:
    """Latents cut into patches (B, S, P), time slowest and width fastest, the channel slowest within a patch."""
    batch, channels = latents_BCTHW.shape[:2]
    t, h, w = grid_of(tuple(latents_BCTHW.shape), patch)
    pt, ph, pw = patch
    x = latents_BCTHW.reshape(batch, channels, t, pt, h, ph, w, pw).permute(0, 2, 4, 6, 1, 3, 5, 7)
    return x.reshape(batch, t * h * w, channels * pt * ph * pw)


class PatchEmbedding(nn.Module):
    """Projects each patch to one token.

    A reshape and a linear rather than a convolution with stride: the same arithmetic, and one matrix product
    that tensor parallel and low precision treat as any other.
    """

    def __init__(self, *, in_channels: int, width: int, patch: Patch, bias: bool = True) -> None:
        super().__init__()
        self.proj = Linear(in_channels * patch[0] * patch[1] * patch[2], width, bias=bias)

    def forward(self, patches_BSP: Tensor) -> Tensor:
        """Tokens (B, S, D)."""
        tokens: Tensor = self.proj(patches_BSP)
        return tokens


def unpatch(tokens_BSD: Tensor, grid: tuple[int, int, int], patch: Patch) -> Tensor:
    """Put tokens that hold one patch each (channel slowest) back into latents (B, C, T, H, W)."""
    (t, h, w), (pt, ph, pw) = grid, patch
    x = tokens_BSD.reshape(len(tokens_BSD), t, h, w, -1, pt, ph, pw).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.reshape(x.shape[0], x.shape[1], t * pt, h * ph, w * pw)
