"""Converts a rank's tokens of a video into all frames of a share of its places, and back: what models call.

`context.frame_all_to_all` exchanges among context ranks. If tensor ranks split tokens too, each exchanges its own. The
next linear gathers the rest, as for any sequence. The frames then come in another order. On one device only dimensions
are permuted.
Shape letters: B samples, S tokens here, T frames, P places of one frame, D width, N lines.
"""

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.layers.uncompiled import uncompiled
from nemo_vfm.parallel.layers.frame_all_to_all import to_sequence, to_temporal
from nemo_vfm.parallel.layers.token_layout import active


def to_lines(x_BSD: Tensor, *, frames: int) -> Tensor:
    """(N, T, D), or a part of each line's frames where tensor ranks split tokens.

    Args:
        frames: of the whole video, T.

    Raises:
        UserError: ranks that do not divide frames or places.
    """
    if active().tokens is None:
        return to_temporal(x_BSD, frames=frames, group=None)
    there: Tensor = _there(x_BSD, frames)
    return there


def from_lines(x_NTD: Tensor, *, batch: int) -> Tensor:
    """The way back, to (B, S, D)."""
    if active().tokens is None:
        return to_sequence(x_NTD, batch=batch, group=None)
    back: Tensor = _back(x_NTD, batch)
    return back


def frame_order(frames: int, device: torch.device) -> Tensor:
    """Which frame stands where in a line that a linear has gathered over the tensor ranks, (T,).

    Raises:
        UserError: ranks that do not divide frames: then none would hold whole ones.
    """
    context, tensor = _ranks(frames)
    number = torch.arange(frames, device=device)
    if tensor == 1:
        return number
    return number.reshape(context, tensor, -1).transpose(0, 1).flatten()


@uncompiled  # messages between ranks
def _there(x_BSD: Tensor, frames: int) -> Tensor:
    _, tensor = _ranks(frames)
    return to_temporal(x_BSD, frames=frames // tensor, group=active().context)


@uncompiled
def _back(x_NTD: Tensor, batch: int) -> Tensor:
    return to_sequence(x_NTD, batch=batch, group=active().context)


def _ranks(frames: int) -> tuple[int, int]:
    """Context ranks, and tensor ranks that split tokens; after refusing what they do not divide."""
    layout = active()
    context = layout.context.size() if layout.context else 1
    tensor = layout.tokens.size() // context if layout.tokens else 1
    require_frames(frames, context, tensor)
    return context, tensor


def require_frames(frames: int, context: int, tensor: int) -> None:
    """Refuse frames that context ranks, and tensor ranks that split tokens, cannot share.

    Raises:
        UserError: with the numbers and what would do.
    """
    if frames % (context * tensor):
        raise UserError(
            f"{frames} latent frames cannot be divided among {context} context x {tensor} tensor ranks (the latter "
            f"count with parallel.sequence), as attention along time and across frames needs; change the degrees, or "
            f"use videos with a multiple of {context * tensor} latent frames"
        )
