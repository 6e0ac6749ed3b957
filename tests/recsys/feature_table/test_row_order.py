"""Tests the arithmetic of epochs and windows, and what one epoch has in common with the next."""

import pytest
import torch

from nemo_vfm.recsys.feature_table.row_order import RowOrder, WindowId, held_out

SESSIONS = torch.arange(40).repeat_interleave(5)


def arranged(order, window, **options):
    options = {"window_groups": 1, "block_rows": 7, "seed": 0, **options}
    return RowOrder([200], order=order, **options).arrange(window, torch.arange(200), SESSIONS).tolist()


def test_row_groups_that_are_held_out_are_in_no_window():
    order = RowOrder([0, 5, 0, 3], seed=0, order="log", window_groups=1, block_rows=1)
    spans = order.spans(4, 6)
    assert [(begin, end) for _, begin, end in spans] == [(4, 5), (0, 3), (0, 2)]
    assert [order.row_groups(window) for window, _, _ in spans] == [(1,), (3,), (1,)]
    assert [order.following(window) for window, _, _ in spans[:-1]] == [window for window, _, _ in spans[1:]]


@pytest.mark.parametrize("order", ["clustered", "shuffled", "log"])
def test_windows_come_in_another_order_in_another_epoch_and_by_another_seed_unless_it_is_that_of_the_log(order):
    def windows(epoch, seed=0):
        one = RowOrder([5] * 12, order=order, seed=seed, window_groups=2, block_rows=7)
        return [one.row_groups(WindowId(epoch, number)) for number in range(6)]

    first, others = windows(0), [windows(1), windows(2), windows(0, seed=1)]
    assert first == windows(0)
    for found in (first, *others):
        assert sorted(group for window in found for group in window) == [*range(12)]
    assert len({tuple(found) for found in (first, *others)}) == (1 if order == "log" else 4)


@pytest.mark.parametrize("order", ["clustered", "shuffled"])
def test_another_epoch_or_seed_arranges_a_window_anew(order):
    first = arranged(order, WindowId(0, 0))
    assert first == arranged(order, WindowId(0, 0)) and sorted(first) == [*range(200)]
    others = arranged(order, WindowId(1, 0)), arranged(order, WindowId(0, 0), seed=1)
    assert len({*map(tuple, (first, *others))}) == 3


def test_a_session_stays_together_and_in_order():
    found = torch.tensor(arranged("clustered", WindowId(0, 0)))
    begins = found[torch.arange(0, 200, 5)]
    assert torch.equal(found, (begins[:, None] + torch.arange(5)).flatten()) and bool((begins % 5 == 0).all())


def test_a_share_of_the_sessions_is_held_out_and_another_by_another_seed():
    sessions = torch.arange(-5000, 5000)
    found = [held_out(sessions, seed, 0.3) for seed in (0, 1, 7)]
    assert [float(one.float().mean()) for one in found] == pytest.approx([0.3] * 3, abs=0.02)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((found[one] & found[other]).float().mean()) == pytest.approx(0.09, abs=0.015)
    assert torch.equal(held_out(sessions.flip(0)[::3], 7, 0.3), found[2].flip(0)[::3]), "by the session alone"
    assert not (found[0] & ~held_out(sessions, 0, 0.5)).any() and not held_out(sessions, 0, 0.0).any()
