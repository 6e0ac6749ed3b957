"""Exchanges a video's tokens, split by time, for all frames of a share of the places, and back.

This is for models that stack attention over everything, over time at one place, and over the places of one frame
(arXiv 2503.12964, 4.5.1). The first runs over ranks (`attend`). With these layouts the other two are local, for two
exchanges in all. Exchanging heads would take two for each attention:

    sequence    (B, T H W / n, D)    the frames of a run, time slowest: the layout in the rest of the model
    temporal    (B H W / n, T, D)    every frame, at a share of the places
    spatial     (B T / n, H W, D)    every place, at a share of the frames: a view of the sequence layout

Both exchanges are exact under autograd, each the other's gradient. Shape letters: B samples, T frames, P places (H W),
D width, n ranks.
"""

from torch import Tensor
from torch.distributed import ProcessGroup

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.collectives import everyone
from nemo_vfm.parallel.context.tiles import Spans, held
from nemo_vfm.parallel.context.ulysses import to_heads, to_tokens


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


def exchange_bytes(ranks: int, nbytes: int) -> float:
    """What each rank sends for one exchange of its `nbytes`, in either direction; a gradient's is the same."""
    return nbytes * (ranks - 1) / ranks


def _runs(group: ProcessGroup, frames: int) -> tuple[Spans, ...]:
    """The frames of each rank."""
    ranks = group.size()
    return tuple(held(rank, ranks, frames // ranks, causal=False) for rank in range(ranks))


def places_of(tokens: int, frames: int, ranks: int) -> int:
    """Places of one frame, where each of so many ranks has so many tokens, after refusing what does not divide.

    Raises:
        UserError: with the numbers and what would do.
    """
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
