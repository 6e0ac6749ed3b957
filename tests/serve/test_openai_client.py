"""Tests the endpoints with OpenAI's own client: whole and streamed answers, seeds, neighbours, log-probabilities."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from starlette.testclient import TestClient

from nemo_vfm.core.network.endpoint import EndpointError
from nemo_vfm.core.network.thought import ThoughtSplit
from nemo_vfm.serve.local_chat import LocalChat
from nemo_vfm.serve.openai_api.routes import application
from tests.support.served_http import NAME, Running

if TYPE_CHECKING:  # it takes a second, of each process that shares the tests
    import openai

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
PROMPTS = ["the miller's cat", "It's what we'll", "мама", "a", "for i in range(10):\n"]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator["openai.OpenAI"]:
    import openai

    with openai.OpenAI(base_url=server.address, api_key="none", max_retries=0) as found:
        yield found


def whole(client: "openai.OpenAI", prompt: Any, **more: Any) -> Any:
    return client.completions.create(model=NAME, prompt=prompt, **{"max_tokens": 24, "seed": 7} | more)


def streamed(client: "openai.OpenAI", prompt: Any, **more: Any) -> tuple[list[str], list[Any]]:
    """(text of each choice, its log-probabilities), put together from the parts."""
    texts: dict[int, str] = {}
    scores: dict[int, list[Any]] = {}
    for part in whole(client, prompt, stream=True, **more):
        for choice in part.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            found = choice.logprobs
            scores.setdefault(choice.index, []).extend(
                zip(found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True)
                if found
                else []
            )
    return [texts[n] for n in sorted(texts)], [scores[n] for n in sorted(scores)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0},
        {"n": 3, "top_p": 0.9},
        {"stop": ["e", "ill"], "n": 4},
        {"echo": True, "logprobs": 2, "n": 2},
    ],
    ids=str,
)
def test_a_streamed_answer_is_the_whole_one(client: "openai.OpenAI", more: dict[str, Any]) -> None:
    once = whole(client, PROMPTS, **more).choices
    texts, scores = streamed(client, PROMPTS, **more)
    assert texts == [choice.text for choice in once]
    for choice, parts in zip(once, scores, strict=True):
        found = choice.logprobs
        expected = (
            zip(found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True) if found else []
        )
        assert parts == list(expected)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_text_whatever_the_neighbours(client: "openai.OpenAI") -> None:
    alone = [whole(client, prompt, n=2, max_tokens=40).choices for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        crowd = [pool.submit(whole, client, prompt, n=2, max_tokens=40) for prompt in PROMPTS]
        others = [pool.submit(whole, client, "x" * n, seed=n, max_tokens=n) for n in range(1, 20)]
        busy = [future.result().choices for future in crowd]
        assert all(future.result() for future in others)
    assert [[one.text for one in choices] for choices in busy] == [[one.text for one in choices] for choices in alone]
    first, second = alone[0]
    assert first.text != second.text
    assert whole(client, PROMPTS[0], seed=8, max_tokens=40).choices[0].text != first.text
    together = whole(client, PROMPTS, n=2, max_tokens=40).choices
    assert [one.text for one in together] == [one.text for choices in alone for one in choices]


def test_each_choice_of_several_prompts_is_that_of_its_prompt_alone(client: "openai.OpenAI") -> None:
    asked: dict[str, Any] = {"n": 2, "echo": True, "logprobs": 1, "max_tokens": 3}
    together = whole(client, PROMPTS[:3], **asked).choices
    alone = [choice for prompt in PROMPTS[:3] for choice in whole(client, prompt, **asked).choices]
    assert [(one.text, one.logprobs) for one in together] == [(one.text, one.logprobs) for one in alone]
    assert [one.index for one in together] == list(range(6)) and together[0].text != together[1].text


def test_tokens_as_a_prompt_are_the_text_as_a_prompt(client: "openai.OpenAI", server: Running) -> None:
    tokens = server.served.tokenizer.encode(PROMPTS)
    assert [one.text for one in whole(client, tokens).choices] == [one.text for one in whole(client, PROMPTS).choices]
    assert whole(client, tokens[0]).choices[0].text == whole(client, PROMPTS[0]).choices[0].text


def test_echoed_log_probabilities_are_those_of_transformers(client: "openai.OpenAI", folder: tuple[Path, Any]) -> None:
    tokens = [1 + 7 * n % 399 for n in range(50)]
    choice = whole(client, tokens, max_tokens=0, echo=True, logprobs=1).choices[0]
    with torch.no_grad():
        logs = folder[1](torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    own = logs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
    best = [max(one.values()) for one in choice.logprobs.top_logprobs[1:]]
    assert best == pytest.approx(logs.amax(1).tolist(), abs=1e-4)
    assert choice.finish_reason == "length"


def test_an_echoed_text_holds_its_tokens_at_their_offsets(client: "openai.OpenAI") -> None:
    choice = whole(client, "the miller's cat", echo=True, logprobs=0, max_tokens=8, temperature=0).choices[0]
    assert choice.text.startswith("the miller's cat") and len(choice.logprobs.tokens) > 8
    for text, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert text.startswith(("bytes:", "token_id:")) or choice.text[offset:].lstrip("\ufffd").startswith(text)


def test_a_stop_string_ends_the_text_before_it(client: "openai.OpenAI") -> None:
    free = whole(client, "the", temperature=0, max_tokens=30).choices[0]
    stop = free.text[7:9]
    ended = whole(client, "the", temperature=0, max_tokens=30, stop=stop, logprobs=0).choices[0]
    assert ended.text == free.text[: free.text.index(stop)] and ended.finish_reason == "stop"
    assert all(offset < len(ended.text) for offset in ended.logprobs.text_offset) and free.finish_reason == "length"


def test_every_way_of_asking_ends_at_a_token_that_ends_a_text(
    client: "openai.OpenAI", server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = frozenset(range(server.served.model.vocab))
    ended = replace(server.served, stop=every)
    app = TestClient(application(ended, server.engine, max_body_bytes=10_000), base_url=server.address[:-3])
    for path, asked in (("completions", {"prompt": "the"}), ("chat/completions", {"messages": MESSAGES})):
        body = app.post(f"/v1/{path}", json={"model": NAME, "max_tokens": 5} | asked).json()
        assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("stop", 0)
    chat = LocalChat(model=lambda: ended, max_tokens=5, room_gb=1e-3)
    said = chat.say(MESSAGES)
    assert (said.ending, said.text, said.tokens_out) == ("success", "", 0)
    chat.close()
    monkeypatch.setattr(type(server.served.chat), "stop_tokens", lambda self: every)
    answer = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].finish_reason == "stop" and not answer.choices[0].message.content


class Fragments:
    """Decodes each token to one of a few texts, `shift` further on, so that a random model thinks."""

    def __init__(self, parts: Sequence[str], shift: int) -> None:
        self.parts, self.shift = parts, shift

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.parts[(token + self.shift) % len(self.parts)] for token in tokens)

    def vocab_size(self) -> int:
        return 1


@pytest.mark.parametrize("is_open", [False, True])
def test_thoughts_are_split_in_a_stream_a_whole_answer_and_this_process_alike(server: Running, is_open: bool) -> None:
    assert server.served.chat is not None
    parts = ("<think>", "a", "\n", "</think>", " b", "<", "think>", "</th")
    last = server.served.chat.tokens(MESSAGES, add_generation_prompt=True)[-1]
    tokenizer: Any = Fragments(parts, -last if is_open else 1 - last)
    served = replace(server.served, tokenizer=tokenizer)
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 12, "n": 16, "seed": 3}
    plain, split = (
        TestClient(
            application(served, server.engine, max_body_bytes=10_000, split_thoughts=on), base_url=server.address[:-3]
        )
        for on in (False, True)
    )
    found = [one["message"] for one in split.post("/v1/chat/completions", json=asked).json()["choices"]]
    pairs = [(one.get("reasoning_content", ""), one["content"]) for one in found]
    raw = [one["message"]["content"] for one in plain.post("/v1/chat/completions", json=asked).json()["choices"]]
    assert pairs == [ThoughtSplit(is_open=is_open).add_last(text) for text in raw]
    assert sum(bool(thought and said) for thought, said in pairs) > 2, "some think and speak"
    texts = [["", ""] for _ in pairs]
    for line in split.post("/v1/chat/completions", json=asked | {"stream": True}).text.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
            for side, name in enumerate(("reasoning_content", "content")):
                texts[choice["index"]][side] += choice["delta"].get(name, "")
    assert [tuple(one) for one in texts] == pairs
    chat = LocalChat(model=lambda: served, max_tokens=12, room_gb=1e-2)
    for number in range(1, 9):
        messages = [{"role": "user", "content": "the cat " * number}]
        body = split.post("/v1/chat/completions", json=asked | {"messages": messages, "n": 1, "temperature": 0}).json()
        message = body["choices"][0]["message"]
        try:
            said = chat.say(messages)
            assert (said.thought, said.text) == (message.get("reasoning_content", "").strip(), message["content"])
        except EndpointError:
            assert message["reasoning_content"] and not message["content"].strip()
    chat.close()


def test_usage_counts_prompts_once_and_every_new_token(client: "openai.OpenAI", server: Running) -> None:
    prompt = [1, 2, 3, 4, 5]
    usage = whole(client, [prompt, prompt], n=3, max_tokens=4, temperature=0).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 24, 34)
    *_, last = whole(client, prompt, max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 4) and not last.choices


def test_a_chat_is_the_completion_of_its_format(client: "openai.OpenAI") -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "max_tokens": 16, "seed": 3, "n": 2}
    answer = client.chat.completions.create(**asked)
    expected = whole(client, "[user]the cat\n[assistant]", max_tokens=16, seed=3, n=2).choices
    assert [one.message.content for one in answer.choices] == [one.text for one in expected]
    assert {one.message.role for one in answer.choices} == {"assistant"}
    parts = [part.choices[0] for part in client.chat.completions.create(**asked | {"n": 1}, stream=True)]
    assert "".join(part.delta.content for part in parts) == expected[0].text
    assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)


def test_a_chat_names_its_likeliest_tokens(client: "openai.OpenAI") -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None and len(content) == 5
    assert all(one.logprob == one.top_logprobs[0].logprob and len(one.top_logprobs) == 2 for one in content)


def test_the_bytes_of_a_chats_tokens_are_the_bytes_of_its_text(client: "openai.OpenAI") -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=60, seed=1, logprobs=True, top_logprobs=20
    )
    content = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    joined = b"".join(bytes(one.bytes or []) for one in content)
    assert joined.decode(errors="replace") == answer.choices[0].message.content
    assert any(one.token.startswith("bytes:") for one in content), "parts of letters are among them"
    every = [other for one in content for other in one.top_logprobs]
    assert all(len({other.token for other in one.top_logprobs}) == 20 for one in content)
    assert all(other.bytes != list("\ufffd".encode()) for other in every)


def test_a_token_bears_its_own_value_among_the_likeliest(client: "openai.OpenAI") -> None:
    found = whole(client, PROMPTS, echo=True, logprobs=20, max_tokens=30, seed=2).choices
    count = 0
    for scores in (choice.logprobs for choice in found):
        for token, own, top in list(zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True))[1:]:
            assert top[token] == own and len(top) in (20, 21)
            count += token.startswith("bytes:")
    assert count, "parts of letters are among them"


def test_the_model_is_listed_under_its_name(client: "openai.OpenAI") -> None:
    import openai

    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="this server has tiny"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="this server has tiny"):
        client.completions.create(model="other", prompt="x")
