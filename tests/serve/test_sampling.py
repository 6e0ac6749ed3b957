"""Tests that every request is sampled by the settings that it gave, whoever is beside it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.batch_engine import choose_tokens
from nemo_vfm.serve.continuous.text_request import RuledText, TokenRules
from nemo_vfm.serve.openai_api.request_fields import SamplingFields
from tests.support.served_http import Running

ALL = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": 0.0}
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.2},
    {"temperature": 0.0},
    {"top_k": 2},
    {"top_p": 0.2},
    {"min_p": 0.6},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_text_is_drawn_by_its_own_settings_whatever_those_beside_it_have(other: dict[str, Any]) -> None:
    scores_NV = torch.randn(60, 40, generator=torch.Generator().manual_seed(0))
    chances = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    own, theirs = Choice(**ALL), Choice(**ALL | other)
    alone, by_theirs = (choose_tokens(scores_NV, [choice] * 60, chances) for choice in (own, theirs))
    assert sum(a != b for a, b in zip(alone, by_theirs, strict=True)) > 10, "the setting must matter"
    mixed = choose_tokens(scores_NV, [own, theirs] * 30, chances)
    assert mixed[::2] == alone[::2] and mixed[1::2] == by_theirs[1::2]


@pytest.mark.parametrize(("sent", "expected"), [
    ({}, {}), ({"temperature": 0.3}, {"temperature": 0.3}), ({"temperature": 0}, {"temperature": 0.0}),
    ({"top_p": 0.4}, {"top_p": 0.4}), ({"top_p": 0}, {"temperature": 0.0}), ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"top_k": 7}, {"top_k": 7}), ({"top_k": 0}, {}), ({"top_k": -1}, {}), ({"top_p": None, "temperature": None}, {}),
], ids=str)  # fmt: skip
def test_each_field_says_how_tokens_are_chosen_and_zero_means_what_clients_mean(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert vars(SamplingFields.read(sent, 9).choice()) == ALL | expected


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"bias": {3: 2.5, 17: -40.0}}, {"sequence_bias": {(3,): 2.5, (17,): -40.0}}),
    "repetition": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "encouraged": ({"repetition_penalty": 0.6}, {"repetition_penalty": 0.6}),
    "minimum": ({"bias": {5: 90.0}, "min_tokens": 7}, {"sequence_bias": {(5,): 90.0}, "min_new_tokens": 7}),
    "all": ({"bias": {3: 2.5, 5: 90.0}, "repetition_penalty": 1.7, "min_tokens": 7},
            {"sequence_bias": {(3,): 2.5, (5,): 90.0}, "repetition_penalty": 1.7, "min_new_tokens": 7}),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules_change_scores_as_the_processors_of_transformers(name: str, folder: tuple[Path, Any]) -> None:
    rules, theirs = RULES[name]
    model, tokens = folder[1], [7, 8, 7, 90, 211]
    more = {"do_sample": False, "eos_token_id": [5, 6], "pad_token_id": 0, "max_new_tokens": 24} | theirs
    expected = model.generate(torch.tensor([tokens]), **more, output_scores=True, return_dict_in_generate=True)
    plain = model.generate(torch.tensor([tokens]), **more | dict.fromkeys(theirs), output_scores=True,
                           return_dict_in_generate=True)  # fmt: skip
    assert expected.sequences.tolist() != plain.sequences.tolist(), "the rule must matter"
    ruled, given = RuledText(TokenRules(**rules), tokens, {5, 6}), tokens
    for chosen_token, scores_1V in zip(expected.sequences[0, len(tokens) :].tolist(), expected.scores, strict=True):
        with torch.no_grad():
            raw_V = model(torch.tensor([given])).logits[0, -1].float()
        kept = raw_V.clone()
        torch.testing.assert_close(ruled.apply(raw_V), scores_1V[0], atol=1e-4, rtol=1e-4)
        assert torch.equal(raw_V, kept)
        ruled.add(chosen_token)
        given = [*given, chosen_token]
    if rules.get("min_tokens"):
        assert given[len(tokens) :].index(5) == 7


def test_presence_counts_once_and_frequency_each_time_in_what_was_written() -> None:
    ruled = RuledText(TokenRules(frequency_penalty=0.5, presence_penalty=0.2), [1, 1, 2], ())
    scores_V = torch.zeros(5)
    assert torch.equal(ruled.apply(scores_V), scores_V), "the prompt does not count"
    for token in (3, 3, 4, 2):
        ruled.add(token)
    assert ruled.apply(scores_V).tolist() == pytest.approx([0, 0, -0.7, -1.2, -0.7])


@pytest.mark.parametrize("sent", [
    {"repetition_penalty": 1.9}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"logit_bias": {"77": 100}},
], ids=str)  # fmt: skip
def test_a_text_with_rules_is_what_it_is_alone_and_leaves_its_neighbours_alone(
    sent: dict[str, Any], server: Running
) -> None:
    asked = {"prompt": "the cat", "max_tokens": 20, "temperature": 0.8, "seed": 3}
    plain = server.ask(asked)[2]["choices"][0]["text"]
    alone = server.ask(asked | sent)[2]["choices"][0]["text"]
    assert alone != plain, "the rule must matter"
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(server.ask, [asked, asked | sent] * 3))
    assert [body["choices"][0]["text"] for _, _, body in found] == [plain, alone] * 3


def test_tokens_that_a_request_names_end_its_texts_and_not_before_the_minimum(server: Running) -> None:
    asked: dict[str, Any] = {"prompt": "the cat", "max_tokens": 12, "temperature": 0, "logit_bias": {"77": 100}}
    assert server.ask(asked)[2]["usage"]["completion_tokens"] == 12
    for more, count in (({}, 0), ({"min_tokens": 5}, 5), ({"min_tokens": 12}, 12)):
        body = server.ask(asked | {"stop_token_ids": [77]} | more)[2]
        assert body["usage"]["completion_tokens"] == count
        assert body["choices"][0]["finish_reason"] == ("stop" if count < 12 else "length")
    chat = {"messages": [{"role": "user", "content": "x"}], "stop_token_ids": [77], "logit_bias": {"77": 100}}
    assert server.ask(chat | {"max_tokens": 4}, "/v1/chat/completions")[2]["usage"]["completion_tokens"] == 0
    every = asked | {"stop_token_ids": list(range(400)), "min_tokens": 1}  # nothing is left to choose
    assert server.ask(every)[0] == 500 and server.ask(asked)[0] == 200


def test_log_probabilities_are_the_models_own_whatever_the_rules(server: Running) -> None:
    asked = {"prompt": "the cat", "max_tokens": 1, "temperature": 0, "logprobs": 3}
    plain, ruled = (server.ask(asked | more)[2]["choices"][0]["logprobs"] for more in ({}, {"logit_bias": {"77": 100}}))
    assert plain["tokens"] != ruled["tokens"] and ruled["token_logprobs"][0] < plain["token_logprobs"][0]
    assert plain["top_logprobs"][0].items() <= ruled["top_logprobs"][0].items()
