"""Lays the sessions of one window of a log out in time, with the changes of each group of features.

Shape letter: B samples of the window.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.recsys.sessions.random_stream import RandomStream

#: A key is the session times this, plus the number of changes (and of a history, the place in it).
MAX_CHANGES = 1 << 21


@dataclass(frozen=True, eq=False)
class SessionWindow:
    """Sessions that run at the same time, and begin and end in the window."""

    number: int  #: of the window
    first: int  #: its first sample's place in the log
    session_B: Tensor  #: of each sample, in the order of time
    clustered_B: Tensor  #: samples by their place in the window, session by session, each ordered by time
    keys: Mapping[str, Tensor]  #: of each group, session * MAX_CHANGES + changes of the group since the session began


def session_window(
    number: int, first: int, num_samples: int, *, seed: int, mean_length: float,
    lengths: Literal["geometric", "fixed"], unchanged: Mapping[str, float],
) -> SessionWindow:  # fmt: skip
    """The window of this number, with samples first, first + 1, ... of the log.

    Args:
        seed: of the log.
        mean_length: samples of a session.
        lengths: geometric from 1 on, or all of the same length. The last session of a window is cut at its end.
        unchanged: of each group, the chance that a sample leaves it as it was; the first of a session never does.
    """
    # Of sessions that have `num_samples` together; a session's number is that of the window's first sample + k.
    numbers_B = first + torch.arange(num_samples)
    if lengths == "fixed" or mean_length == 1:
        length_K = torch.full((math.ceil(num_samples / mean_length),), round(mean_length))
    else:
        uniform = RandomStream(seed, "session lengths").uniform(numbers_B)  # as many as there can be sessions
        length_K = 1 + (torch.log1p(-uniform) / math.log1p(-1 / mean_length)).to(torch.int64)
    ends_K = length_K.cumsum(0)
    num_sessions = int(torch.searchsorted(ends_K, num_samples)) + 1
    length_K = length_K[:num_sessions]
    length_K[-1] -= ends_K[num_sessions - 1] - num_samples
    begins_K = length_K.cumsum(0) - length_K
    order_B = RandomStream(seed, "time").uniform(numbers_B).argsort()
    of_B = torch.arange(len(length_K)).repeat_interleave(length_K)[order_B]
    clustered_B = of_B.argsort(stable=True)
    session_B = first + of_B[clustered_B]
    keys = {}
    for group, stays in unchanged.items():
        drawn_B = RandomStream(seed, f"{group}/changes").uniform(numbers_B)
        changes_B = (drawn_B >= stays).to(torch.int64).index_fill_(0, begins_K, 0).cumsum_(0)
        changes_B -= changes_B[begins_K].repeat_interleave(length_K)
        keys[group] = torch.empty_like(of_B).index_copy_(0, clustered_B, session_B * MAX_CHANGES + changes_B)
    return SessionWindow(number, first, first + of_B, clustered_B, keys)
