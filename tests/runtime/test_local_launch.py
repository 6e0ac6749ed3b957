"""Tests what is said of ranks that have ended: the status of all, who is to blame, and whether that must be told."""

import signal

import pytest

from nemo_vfm.runtime.local_launch import _Ranks

TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT


@pytest.mark.parametrize(
    ("ended", "by_us", "sent", "status", "story"),
    [
        ([(1, 0), (0, 0)], (), (), 0, ""),
        ([(1, -KILL), (0, 69)], (), (), 69, "rank 1 of 2 was killed by SIGKILL"),
        ([(0, 69), (1, -KILL)], (1,), (), 69, ""),  # we ended rank 1, and rank 0 has said whom it lost
        ([(1, 1), (0, 69)], (), (), 1, "rank 1 of 2 ended with status 1"),
        ([(1, 2), (0, 2)], (), (), 2, ""),  # both refuse the recipe, and rank 0 has said so
        ([(1, 1), (0, -KILL)], (), (), 1, "rank 1 of 2 ended with status 1"),  # rank 0 could say nothing
        ([(0, -KILL), (1, 69)], (), (), 69, "rank 0 of 2 was killed by SIGKILL"),
        ([(1, 75), (0, 75)], (), (TERM,), 75, ""),
        ([(1, -TERM), (0, 75)], (), (TERM,), 75, ""),
        ([(1, -INT), (0, -INT)], (), (INT,), 130, "rank 1 of 2 was killed by SIGINT"),
        ([(1, -TERM), (0, 69)], (), (), 69, "rank 1 of 2 was killed by SIGTERM"),  # not by us
        ([(1, 76), (0, 76)], (), (), 76, ""),
    ],
)
def test_the_first_rank_that_ended_for_a_reason_of_its_own_decides(ended, by_us, sent, status, story):
    ranks = _Ranks(["run"], 2, {}, list(sent))
    ranks._ended, ranks._ended_by_us = dict(ended), set(by_us)
    ranks.wait()
    assert ranks.status == status
    if story:
        assert ranks.has_story() and ranks.story().startswith(story)
        assert ("ranks/rank-1.log" in ranks.story()) == story.startswith("rank 1")
    else:
        assert not ranks.has_story()
