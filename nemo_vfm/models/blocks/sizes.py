# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a diffusion transformer and what it is given in; a sentence with them where they do not fit, out."""

from torch import Tensor

from nemo_vfm.models.blocks.rope import axis_dims


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


def require_sizes(
    *, in_channels: int, text_dim: int, width: int, depth: int, heads: int, patch: tuple[int, int, int]
) -> None:
    """Refuse sizes that do not go together.

    Raises:
        ValueError: with the number.
    """
    for name, value in (("in_channels", in_channels), ("text_dim", text_dim), ("width", width), ("heads", heads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    if width % heads:
        raise ValueError(f"width {width} is not divisible by heads {heads}")
    if len(patch) != 3 or min(patch) < 1:
        raise ValueError(f"patch must be three sizes of at least 1 (frames, rows, columns), got {tuple(patch)}")
    axis_dims(width // heads)


def require_rank(rank: int | None, width: int) -> None:
    """Refuse a rank of modulations that cannot be.

    Raises:
        ValueError: with the number.
    """
    if rank is not None and rank < 1:
        raise ValueError(f"modulation_rank must be at least 1, got {rank}; write null for modulations without one")
    if rank is not None and width % 2:
        raise ValueError(f"width {width} is odd, and a noise level of low rank takes as many sines as cosines")
