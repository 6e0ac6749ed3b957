"""Converts a rank's tokens of a video into all frames of a share of its places, and back.

This is for models that stack attention over everything, over time at one place, and over the places of one frame
(arXiv 2503.12964, 4.5.1). The first runs over ranks (`attend`). With these layouts the other two are local, for two
exchanges in all. Exchanging heads would take two for each attention:

    sequence    (B, T P / n, D)    the frames of a run, time slowest: the layout in the rest of the model
    temporal    (B P / n, T, D)    every frame, at a share of the places
    spatial     (B T / n, P, D)    every place, at a share of the frames: a view of the sequence layout

Both exchanges are exact under autograd, each the other's gradient. If tensor ranks split tokens too, each exchanges its
own among context ranks, and the next linear gathers the rest, as for any sequence; frames then come in another order.
On one device only dimensions are permuted.
Shape letters: B samples, S tokens here, T frames, P places of one frame, D width, N lines, n ranks.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.collectives import everyone
from nemo_vfm.parallel.context.tiles import Spans, local_spans
from nemo_vfm.parallel.context.ulysses import to_heads, to_tokens
from nemo_vfm.parallel.layers.token_layout import active
from nemo_vfm.parallel.layers.uncompiled import uncompiled


def to_lines(x_BSD: Tensor, *, frames: int) -> Tensor:
    """(N, T, D) of a video of T frames, or a part of each line's frames where tensor ranks split tokens."""
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
    """Refuse frames that context ranks, and tensor ranks that split tokens, cannot share."""
    if frames % (context * tensor):
        raise UserError(
            f"{frames} latent frames cannot be divided among {context} context x {tensor} tensor ranks (the latter "
            f"count with parallel.sequence), as attention along time and across frames needs; change the degrees, or "
            f"use videos with a multiple of {context * tensor} latent frames"
        )


def to_temporal(x_BSD: Tensor, *, frames: int, group: ProcessGroup | None) -> Tensor:
    """From the sequence layout to the temporal one.

    Args:
        frames: of the whole video, T, after patches were made.
        group: the ranks that share the video in runs of frames, as `order.shard` without causality gives; None for
            one that has all of it.
    """
    ranks = group.size() if group else 1
    places = places_of(x_BSD.shape[1], frames, ranks)
    x_BPTD = x_BSD.reshape(x_BSD.shape[0], frames // ranks, places, x_BSD.shape[2]).transpose(1, 2)
    if group:
        (x_BPTD,) = to_heads(everyone(group), _runs(group, frames), (x_BPTD,))
    return x_BPTD.flatten(0, 1)


def to_sequence(x_PTD: Tensor, *, batch: int, group: ProcessGroup | None) -> Tensor:
    """From the temporal layout back to the sequence one.

    Args:
        batch: samples, B.
        group: as for `to_temporal`.
    """
    frames = x_PTD.shape[1]
    x_BPTD = x_PTD.reshape(batch, -1, *x_PTD.shape[1:])
    if group:
        (x_BPTD,) = to_tokens(everyone(group), _runs(group, frames), (x_BPTD,))
    return x_BPTD.transpose(1, 2).flatten(1, 2)


def _runs(group: ProcessGroup, frames: int) -> tuple[Spans, ...]:
    """The frames of each rank."""
    ranks = group.size()
    return tuple(local_spans(rank, ranks, frames // ranks, causal=False) for rank in range(ranks))


def places_of(tokens: int, frames: int, ranks: int) -> int:
    """Places of one frame, where each of so many ranks has so many tokens, after refusing what does not divide."""
    if frames < 1 or frames % ranks:
        raise UserError(
            f"{frames} frames are not divisible by {ranks} context ranks, so no rank would hold whole frames. Choose "
            f"a context degree that divides {frames}, or videos with a multiple of {ranks} latent frames"
        )
    if tokens % (frames // ranks):
        raise UserError(
            f"{tokens} tokens on each of {ranks} ranks are not {frames // ranks} whole frames, as {frames} frames "
            "require"
        )
    places = tokens // (frames // ranks)
    if places % ranks:
        raise UserError(
            f"a frame of {places} tokens is not divisible by {ranks} context ranks, so its positions cannot be "
            f"distributed for attention over time. Use a height and width whose product is a multiple of {ranks}, or "
            "fewer ranks"
        )
    return places
