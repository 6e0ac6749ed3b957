"""Tests that a budget is never exceeded by what is reserved, and says what was spent."""

import pytest

from nemo_vfm.asking.budget import Budget, Price, TokenCost, estimated_tokens


def test_money_needs_the_price_of_each_model_and_nothing_is_a_price():
    budget = Budget(money=5.0, prices={"free": Price(million_in=0.0, million_out=0.0)})
    assert budget.reserve(budget.price_of("free").cost(10**12, 10**12))
    with pytest.raises(ValueError, match=r"limits money to 5.*'dear'"):
        budget.price_of("dear")
    assert Budget(tokens=5).price_of("dear").cost(3, 4) == TokenCost(3, 4, 0.0)


@pytest.mark.parametrize("changes", [{"tokens": -1}, {"money": -1.0}])
def test_negative_numbers_are_refused(changes):
    with pytest.raises(ValueError, match="at least 0"):
        Budget(**changes)
    with pytest.raises(ValueError, match="at least 0"):
        Price(million_in=-1.0, million_out=0.0)


def test_what_is_reserved_counts_until_it_is_settled():
    budget = Budget(tokens=100)
    assert budget.reserve(TokenCost(30, 30)) and not budget.reserve(TokenCost(21, 20))
    budget.settle(TokenCost(30, 30), TokenCost(10, 5))
    assert budget.reserve(TokenCost(41, 44)) and not budget.reserve(TokenCost(1, 0))
    budget.release(TokenCost(41, 44))
    assert budget.reserve(TokenCost(85, 0)) and budget.spent == TokenCost(10, 5)


def test_money_counts_each_way_by_its_own_price():
    price = Price(million_in=2.0, million_out=10.0)
    budget = Budget(money=1.0, prices={"m": price})
    assert price.cost(250_000, 50_000).money == pytest.approx(1.0)
    assert not budget.reserve(price.cost(250_001, 50_000)) and budget.reserve(price.cost(250_000, 50_000))


def test_the_whole_budget_can_be_spent_in_small_parts():
    price = Price(million_in=0.1, million_out=0.0)
    budget = Budget(money=1e-6, prices={"m": price})
    assert [budget.reserve(price.cost(1, 0)) for _ in range(11)] == [True] * 10 + [False]


def test_a_service_that_counts_nothing_is_taken_to_have_used_all():
    budget = Budget(tokens=100)
    budget.reserve(TokenCost(20, 30, 1.5))
    budget.settle(TokenCost(20, 30, 1.5), TokenCost())
    assert budget.spent == TokenCost(20, 30, 1.5)


def test_the_error_says_what_was_spent_and_what_to_do():
    budget = Budget(tokens=2000, money=1.0)
    budget.settle(TokenCost(), TokenCost(1000, 500, 0.2))
    text = str(budget.exceeded_error(TokenCost(400, 300)))
    assert "1,500 of 2,000 tokens, 0.2 of 1 in money" in text and "700 tokens" in text and "run again" in text


@pytest.mark.parametrize("kind", ["image_url", "video_url", "input_audio"])
def test_each_medium_is_estimated_alike_however_long_it_is(kind):
    tokens = [estimated_tokens([{"content": [{"type": kind, kind: {"data": "x" * size}}]}]) for size in (10, 10**6)]
    assert tokens[0] == tokens[1] > 1000


def test_a_question_is_estimated_by_its_texts_and_pictures_not_by_their_bytes():
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "A" * 900_000}}
    text = {"type": "text", "text": "x" * 3000}
    assert 1000 <= estimated_tokens([{"role": "user", "content": "x" * 3000}]) < 1020
    assert 2500 <= estimated_tokens([{"role": "user", "content": [text, picture]}]) < 2520
    assert estimated_tokens([{"role": "user", "content": "\ud800"}]) < 20
