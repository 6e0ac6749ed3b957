"""Cuts the samples of users into sessions, and makes of each user's clicks the histories that later samples have.

Shape letters: B samples in the order of (user, time), C of them clicked.
"""

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged, slice_positions


def sessions_by_gap(user_B: Tensor, time_B: Tensor, ids_B: Tensor, gap: int) -> Tensor:
    """The session of each sample: int64, (B,). A session has the number of its first sample.

    Args:
        user_B: equal numbers are neighbours.
        time_B: of one user never smaller than before.
        ids_B: numbers of samples.
        gap: a sample that comes later than this after the user's last one begins another session.
    """
    begins_B = _changes(user_B)
    begins_B[1:] |= torch.diff(time_B) > gap
    return ids_B[_latest(begins_B)]


def clicks_before(user_B: Tensor, time_B: Tensor, clicked_B: Tensor, items: Jagged, length: int) -> Jagged:
    """The items that the user had clicked before each sample, the newest last, at most `length`.

    A click counts from the next time on: of samples with one time, which were shown at once, none knows the others.

    Args:
        clicked_B: bool.
        items: one id a sample.
    """
    before_B = clicked_B.cumsum(0) - clicked_B.to(torch.int64)  # clicks of samples before this one, of all users
    user_change_B = _changes(user_B)
    clicks_B = before_B[_latest(user_change_B | _changes(time_B))]
    lengths_B = (clicks_B - before_B[_latest(user_change_B)]).clamp(max=length)
    clicked_C = items.select(clicked_B.nonzero().squeeze(1)).values_N
    return Jagged(clicked_C[slice_positions(clicks_B - lengths_B, lengths_B)], lengths_B)


def _changes(numbers_B: Tensor) -> Tensor:
    """Where a number is not the one before; the first one is: bool."""
    return torch.cat([numbers_B.new_ones(1, dtype=torch.bool), numbers_B[1:] != numbers_B[:-1]])[: len(numbers_B)]


def _latest(begins_B: Tensor) -> Tensor:
    """The last place up to each at which something begins."""
    return begins_B.nonzero().squeeze(1)[begins_B.cumsum(0) - 1]
