"""Tests that shuffles and spans give every place once, evenly, and each alone."""

from collections import Counter

import numpy as np
import pytest

from nemo_vfm.data.tokens.token_rows import Spans, shuffle_positions


@pytest.mark.parametrize("count", [1, 2, 5, 1000, 1 << 14, (1 << 14) + 1, 70_000])
def test_a_shuffle_has_every_number_once(count):
    assert np.array_equal(np.sort(shuffle_positions(np.arange(count), count, 7)), np.arange(count))


@pytest.mark.parametrize("count", [100, 50_000])
def test_any_place_of_a_shuffle_is_known_without_the_others(count):
    whole, some = shuffle_positions(np.arange(count), count, 7, "x", 3), np.array([99, 0, 5])
    assert np.array_equal(shuffle_positions(some, count, 7, "x", 3), whole[some])
    assert not np.array_equal(whole, shuffle_positions(np.arange(count), count, 8, "x", 3))
    assert not np.array_equal(whole, shuffle_positions(np.arange(count), count, 7, "x", 4))


def test_all_orders_of_four_things_come_about_equally_often():
    counts = Counter(tuple(shuffle_positions(np.arange(4), 4, seed).tolist()) for seed in range(2400))
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7  # 1 in 1,000 by chance, 23 degrees


def test_a_large_shuffle_leaves_no_trace_of_the_order():
    count = 60_000
    found = shuffle_positions(np.arange(count), count, 1)
    assert (
        abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02 and abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.02
    )
    assert np.abs(np.diff(found)).mean() == pytest.approx(count / 3, rel=0.02)


@pytest.mark.parametrize(("tokens", "length"), [(1000, 7), (1000, 10), (50, 50), (101, 100), (64, 1)])
def test_spans_cover_every_token_once_an_epoch(tokens, length):
    spans, epochs = Spans(tokens, length, seed=3), 4
    first, last = spans.before(1), spans.before(1 + epochs)
    found = spans.starts(np.arange(first, last))
    seen = Counter(((found[:, None] + np.arange(length)) % tokens).ravel().tolist())
    assert len(found) in (epochs * tokens // length, epochs * tokens // length + 1)
    assert set(seen) == set(range(tokens)) and max(seen.values()) <= epochs + 1 and min(seen.values()) >= epochs - 1
    whole = Counter(((np.arange(first, last)[:, None] * length + np.arange(length)) % tokens).ravel().tolist())
    assert seen == whole


def test_epochs_are_cut_and_shuffled_anew():
    spans = Spans(1000, 7, seed=3)
    cuts = [set((spans.starts(np.arange(spans.before(e), spans.before(e + 1))) % 7).tolist()) for e in range(3)]
    assert len({frozenset(cut) for cut in cuts}) == 3
    even = Spans(1000, 10, seed=3)
    assert even.starts(np.arange(100)).tolist() != even.starts(np.arange(100, 200)).tolist()


def test_a_span_far_away_is_found_at_once():
    spans = Spans(3 * 10**12 + 1, 4096, seed=0)
    (start,) = spans.starts(np.array([10**12])).tolist()
    assert 0 <= start < 3 * 10**12 + 1
    assert spans.starts(np.array([5, 10**12])).tolist()[1] == start


def test_without_shuffling_spans_follow_one_another():
    assert Spans(100, 30, seed=0, shuffle=False).starts(np.arange(5)).tolist() == [0, 30, 60, 90, 20]


def test_a_stream_shorter_than_a_span_is_refused():
    with pytest.raises(ValueError, match="no span of 101"):
        Spans(100, 101, seed=0)
