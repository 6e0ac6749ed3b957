"""Checks the sizes and the inputs of a diffusion transformer; errors name the numbers that do not fit."""

from torch import Tensor

from nemo_vfm.core.bounds import MOST_BLOCKS, MOST_WIDTH, require_between
from nemo_vfm.models.blocks.rope import axis_dims

_LARGEST_PATCH = 256


def require_inputs(latents_BCTHW: Tensor, text_BLD: Tensor, *, in_channels: int, text_dim: int) -> None:
    """Refuse latents and text that the model was not built for.

    Raises:
        ValueError: with both numbers.
    """
    if latents_BCTHW.shape[1] != in_channels:
        raise ValueError(
            f"latents have {latents_BCTHW.shape[1]} channels and the model was built for {in_channels}; "
            "set the model's in_channels to the codec's number of channels"
        )
    if text_BLD.shape[2] != text_dim:
        raise ValueError(
            f"text tokens are {text_BLD.shape[2]} wide and the model was built for {text_dim}; "
            "set the model's text_dim to the text encoder's dim"
        )


def require_condition(condition: Tensor, latents: Tensor, channels: int) -> None:
    """Refuse condition channels that do not match the model or the latents.

    Raises:
        ValueError: names both shapes.
    """
    expected = (latents.shape[0], channels, *latents.shape[2:])
    if tuple(condition.shape) != expected:
        raise ValueError(
            f"condition channels have the shape {tuple(condition.shape)} with latents of {tuple(latents.shape)}; "
            f"expected {expected}, since the model's condition_channels is {channels}"
        )


def require_sizes(
    *,
    in_channels: int,
    text_dim: int,
    width: int,
    depth: int,
    heads: int,
    patch: tuple[int, int, int],
    mlp_ratio: float = 4.0,
) -> None:
    """Refuse sizes that do not go together.

    Raises:
        ValueError: with the number.
    """
    require_between(1, MOST_WIDTH, in_channels=in_channels, text_dim=text_dim, width=width, heads=heads)
    require_between(1, MOST_BLOCKS, depth=depth)
    require_between(1 / width, MOST_WIDTH / width, mlp_ratio=mlp_ratio)
    if width % heads:
        raise ValueError(f"width {width} is not divisible by heads {heads}")
    if len(patch) != 3 or min(patch) < 1 or max(patch) > _LARGEST_PATCH:
        raise ValueError(
            f"patch must be three sizes of 1 to {_LARGEST_PATCH} (frames, rows, columns), got {tuple(patch)}"
        )
    axis_dims(width // heads)


def require_rank(rank: int | None, width: int) -> None:
    """Refuse a rank of modulations that cannot be.

    Raises:
        ValueError: with the number.
    """
    if rank is not None and rank < 1:
        raise ValueError(f"modulation_rank must be at least 1, got {rank}; write null for modulations without one")
    require_between(1, MOST_WIDTH, modulation_rank=rank)
    if rank is not None and width % 2:
        raise ValueError(f"width {width} is odd, and a noise level of low rank takes as many sines as cosines")
