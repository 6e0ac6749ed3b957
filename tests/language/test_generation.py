"""Tests that tokens are drawn with the requested probabilities, and texts of a batch are independent."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_vfm.language.generation import generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.gpt import GPT

LIKELY = torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]])


def left(choice: Choice) -> list[float]:
    return choice.probabilities(LIKELY.log())[0].tolist()


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, [0.5, 0.25, 0.15, 0.07, 0.03]),
    ({"temperature": 0}, [1, 0, 0, 0, 0]),
    ({"temperature": 0.5}, [0.25 / 0.3408, 0.0625 / 0.3408, 0.0225 / 0.3408, 0.0049 / 0.3408, 0.0009 / 0.3408]),
    ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0, 0]),
    ({"top_p": 0.75}, [2 / 3, 1 / 3, 0, 0, 0]),
    ({"top_p": 0.76}, [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0, 0]),
    ({"min_p": 0.2}, [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0, 0]),
    ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0, 0]),
], ids=str)  # fmt: skip
def test_probabilities_are_those_of_the_definition(settings: dict[str, Any], expected: list[float]) -> None:
    assert left(Choice(**settings)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}], ids=str
)
def test_what_is_cut_off_of_one_text_does_not_depend_on_the_others(settings: dict[str, Any]) -> None:
    """A text that is sure of its next word stands beside one that is not."""
    scores = torch.randn(6, 12, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.1, 1, 2, 4, 8, 16]]).T
    together = Choice(**settings).probabilities(scores)
    assert torch.equal(together, torch.cat([Choice(**settings).probabilities(row[None]) for row in scores]))


def test_a_share_that_one_word_reaches_exactly_is_that_word() -> None:
    assert Choice(top_p=0.5).probabilities(torch.zeros(1, 2)).tolist() == [[1, 0]]


def test_words_are_drawn_as_often_as_they_are_likely() -> None:
    count = 20_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(0))
    words = Choice(top_k=4).draw(LIKELY.log().expand(count, -1), uniform)
    shares = torch.bincount(words, minlength=5) / count
    assert shares.tolist() == pytest.approx([0.5 / 0.97, 0.25 / 0.97, 0.15 / 0.97, 0.07 / 0.97, 0], abs=0.015)


def test_a_number_just_below_one_draws_no_word_that_was_cut_off() -> None:
    almost = torch.tensor([1 - 2**-24])
    assert Choice(top_k=2).draw(LIKELY.log(), almost).tolist() == [1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"temperature": -1}, "temperature"), ({"top_k": 0}, "top_k"), ({"top_p": 0}, "top_p"), ({"min_p": 1}, "min_p")],
)
def test_numbers_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Choice(**settings)


def test_scores_that_are_not_numbers_are_said() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Choice().probabilities(torch.tensor([[0.0, float("nan")]]))


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=64, width=32, depth=2, heads=4, mlp_hidden=64, init_std=0.5).eval()


TEXTS = [[1, 2, 3, 4, 5], [7], [9, 10]]


@pytest.mark.parametrize("choice", [Choice(temperature=0), Choice(top_p=0.9)], ids=["likeliest", "nucleus"])
def test_a_text_is_the_same_alone_and_among_others(model: GPT, choice: Choice) -> None:
    together = generate(model, TEXTS, max_new=12, choice=choice, seeds=[3, 4, 5])
    alone = [generate(model, [text], max_new=12, choice=choice, seeds=[seed])[0]
             for text, seed in zip(TEXTS, (3, 4, 5), strict=True)]  # fmt: skip
    assert together == alone and [len(text) for text in alone] == [12] * 3


def test_the_likeliest_words_are_those_of_reading_all_again(model: GPT) -> None:
    with patch.object(model, "cache", wraps=model.cache) as cache:
        (found,) = generate(model, TEXTS[:1], max_new=6, choice=Choice(temperature=0), seeds=[0])
    assert cache.call_args.args[1] == 5 + 6 - 1, "some models place tokens by how long a text may get"
    text = list(TEXTS[0])
    for word in found:
        room = model.cache(torch.zeros(1, dtype=torch.long), len(text), torch.float32)
        assert int(model.scores(torch.tensor([text]), room).argmax()) == word
        text.append(word)


def test_a_stop_word_ends_its_own_text_alone(model: GPT) -> None:
    free = generate(model, TEXTS, max_new=8, choice=Choice(), seeds=[1, 2, 3])
    stop = free[0][3]
    found = generate(model, TEXTS, max_new=8, choice=Choice(), seeds=[1, 2, 3], stop=frozenset([stop]))
    assert found == [text[: text.index(stop)] if stop in text else text for text in free]


def test_an_empty_beginning_is_refused(model: GPT) -> None:
    with pytest.raises(ValueError, match="2 prompts need as many seeds"):
        generate(model, [[1], []], max_new=2, choice=Choice(), seeds=[1, 2])
