# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a budget is never exceeded by what is reserved, and says what was spent."""

import pytest

from nemo_vfm.asking.budget import Budget, Cost, Spending, estimated_tokens


@pytest.mark.parametrize("prices", [{}, {"price_in": 1.0}, {"price_out": 1.0}])
def test_money_without_both_prices_is_refused_before_anything_is_asked(prices):
    with pytest.raises(ValueError, match="money is limited to 5"):
        Budget(money=5.0, **prices)
    assert Budget(money=5.0, price_in=0.0, price_out=0.0).allows(Cost(10**12, 10**12))


@pytest.mark.parametrize("changes", [{"tokens": -1}, {"price_in": -1.0}])
def test_negative_numbers_are_refused(changes):
    with pytest.raises(ValueError, match="at least 0"):
        Budget(**changes)


def test_what_is_reserved_counts_until_it_is_settled():
    spending = Spending(Budget(tokens=100))
    assert spending.reserve(Cost(30, 30)) and not spending.reserve(Cost(21, 20))
    spending.settle(Cost(30, 30), Cost(10, 5))
    assert spending.reserve(Cost(41, 44)) and not spending.reserve(Cost(1, 0))
    spending.release(Cost(41, 44))
    assert spending.reserve(Cost(85, 0)) and spending.spent == Cost(10, 5)


def test_money_counts_each_way_by_its_own_price():
    spending = Spending(Budget(money=1.0, price_in=2.0, price_out=10.0))
    assert spending.budget.price(Cost(250_000, 50_000)) == pytest.approx(1.0)
    assert not spending.reserve(Cost(250_001, 50_000)) and spending.reserve(Cost(250_000, 50_000))


def test_a_service_that_counts_nothing_is_taken_to_have_used_all():
    spending = Spending(Budget(tokens=100))
    spending.reserve(Cost(20, 30))
    spending.settle(Cost(20, 30), Cost())
    assert spending.spent == Cost(20, 30)


def test_the_stop_says_what_was_spent_and_what_to_do():
    spending = Spending(Budget(tokens=2000, money=1.0, price_in=100.0, price_out=200.0))
    spending.settle(Cost(), Cost(1000, 500))
    text = str(spending.stop(Cost(400, 300)))
    assert "1,500 of 2,000 tokens, 0.2 of 1 in money" in text and "700 tokens" in text and "run again" in text


def test_a_question_is_estimated_by_its_texts_and_pictures_not_by_their_bytes():
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "A" * 900_000}}
    text = {"type": "text", "text": "x" * 3000}
    assert 1000 <= estimated_tokens([{"role": "user", "content": "x" * 3000}]) < 1020
    assert 2500 <= estimated_tokens([{"role": "user", "content": [text, picture]}]) < 2520
    assert estimated_tokens([{"role": "user", "content": "\ud800"}]) < 20
