"""Tests that a reward model's server answers as Nemotron's and vLLM's clients expect, each score as it is alone."""

import json
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.question import Question
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.endpoint import Endpoint, EndpointError
from nemo_vfm.core.network.reward_chat import RewardChat
from nemo_vfm.serve.local_chat import LocalChat
from nemo_vfm.serve.rewards.conversation_scoring import OutputListener, text_to_score
from nemo_vfm.serve.rewards.local_reward import LocalReward
from nemo_vfm.serve.rewards.served_reward import served_reward
from nemo_vfm.serve.served_folder import served_folder
from tests.serve.test_leaving import KEY, Process, wait_for
from tests.support.chat_server import allowed
from tests.support.served_http import ATTRIBUTES, NAME, Running, reward_folder, running

WEIGHTS = {"helpfulness": 0.65, "correctness": 0.8, "coherence": 0.45}
WORDS = ("the", "cat", "sat", "on", "a", "mat", "by", "the", "mill", "and", "saw", "365", "mice")


def conversation(number: int) -> list[dict[str, str]]:
    """One of its own length: the longest are read in several pieces."""
    draw = random.Random(number)
    said = [" ".join(draw.choices(WORDS, k=draw.randint(1, 25))) for _ in range(2 + 2 * (number % 3))]
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]


CONVERSATIONS = [conversation(number) for number in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder of a reward model, the model of transformers)."""
    path = tmp_path_factory.mktemp("reward") / "tiny"
    return path, reward_folder(path)


@pytest.fixture(scope="module")
def rewards(model: tuple[Path, Any]) -> Iterator[Running]:
    with running(model[0], room_tokens=400, max_waiting=40, at_once=3, score_weights=WEIGHTS) as found:
        yield found


def scores_of(found: Any) -> list[dict[str, float]]:
    status, _, body = found
    assert status == 200, body
    return [one["scores"] for one in body["data"]]


def score(server: Running, messages: Any) -> list[dict[str, float]]:
    return scores_of(server.ask({"messages": messages}, "/v1/score"))


def test_scores_are_those_of_transformers_and_each_is_what_it_is_alone(
    rewards: Running, model: tuple[Path, Any]
) -> None:
    together = score(rewards, CONVERSATIONS)
    with ThreadPoolExecutor(6) as pool:
        beside = [one[0] for one in pool.map(lambda messages: score(rewards, messages), CONVERSATIONS)]
    alone = [score(rewards, [messages])[0] for messages in CONVERSATIONS]
    assert together == alone == beside and len({str(one) for one in alone}) == 12
    assert rewards.served.chat is not None
    for messages, found in zip(CONVERSATIONS, alone, strict=True):
        tokens = rewards.served.chat.tokens(messages, add_generation_prompt=False)
        assert tokens[-1] == model[1].config.pad_token_id  # it is not scored: transformers says which is
        with torch.no_grad():
            expected = model[1](torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(torch.tensor(list(found.values())), expected, atol=1e-4, rtol=1e-4)
        assert tuple(found) == ATTRIBUTES


def test_a_chat_is_answered_as_by_nemotrons_reward_endpoint(rewards: Running) -> None:
    import openai

    with openai.OpenAI(base_url=rewards.address, api_key="none", max_retries=0) as client:
        messages: Any = CONVERSATIONS[0]
        found = client.chat.completions.create(model=NAME, messages=messages)
        plain = client.chat.completions.create(
            model=NAME, messages=messages, logprobs=False, temperature=0, max_tokens=8, seed=3, stream=False
        )
    content = found.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    listed = {one.token: one.logprob for one in content}
    assert tuple(listed) == ATTRIBUTES and listed == score(rewards, messages)[0]
    text = found.choices[0].message.content or ""
    assert {name: float(number) for name, number in (pair.split(":") for pair in text.split(","))} == listed
    assert plain.choices[0].message.content == text and plain.choices[0].logprobs is None
    assert rewards.served.chat is not None and found.usage is not None
    tokens = rewards.served.chat.tokens(messages, add_generation_prompt=False)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(tokens) - 1, 0)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")], ids=str)
def test_pairs_of_texts_are_scored_as_vllm_has_them(rewards: Running, path: str, names: tuple[str, str]) -> None:
    def turns(prompt: str, text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]

    def asked(prompts: Any, answers: Any) -> Any:
        return rewards.ask({names[0]: prompts, names[1]: answers, "encoding_format": "float"}, path)

    assert scores_of(asked("a cat?", ["a mat", "mice"])) == score(
        rewards, [turns("a cat?", one) for one in ("a mat", "mice")]
    )
    assert scores_of(asked(["a", "b"], ["c", "d"])) == score(rewards, [turns("a", "c"), turns("b", "d")])
    body = asked("a", "c")[2]
    entry = body["data"][0]
    assert (body["object"], entry["index"], entry["object"], body["usage"]["completion_tokens"]) == (
        "list",
        0,
        "score",
        0,
    )
    assert entry["score"] == pytest.approx(sum(weight * entry["scores"][name] for name, weight in WEIGHTS.items()))


ASSISTANT = CONVERSATIONS[0]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "messages", "give messages"),
        ({"messages": ASSISTANT, "text_1": "a", "text_2": "b"}, "messages", "give messages"),
        ({"text_1": "a"}, "text_2", "must be a text or a list of texts"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "2 texts and text_2 1"),
        ({"text_1": "a", "text_2": []}, "text_2", "at least one"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [ASSISTANT, []]}, "messages", "at least one"),
        (
            {"messages": [ASSISTANT, ASSISTANT[:1]]},
            "messages",
            "(conversation 1): the answer of the assistant is scored",
        ),
        ({"messages": [{"role": "assistant"}]}, "messages", "a message has no content"),
        ({"messages": [ASSISTANT] * 41}, "messages", "longer than the queue of 40"),
        ({"text_1": "a", "text_2": ["b"] * 41}, "text_2", "longer than the queue of 40"),
        (
            {"messages": [{"role": "assistant", "content": "cat " * 600}]},
            "messages",
            "exceeds the model's context of 512",
        ),
        ({"messages": [{"role": "assistant", "content": "cat " * 430}]}, "messages", "there is room for 400 in all"),
        ({"messages": ASSISTANT, "use_activation": True}, "use_activation", "only false is allowed"),
        ({"messages": ASSISTANT, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not a field of this server"),
    ],
    ids=range(15),
)
def test_what_cannot_be_scored_is_a_sentence_that_names_the_field(
    rewards: Running, body: dict[str, Any], param: str, said: str
) -> None:
    status, _, answer = rewards.ask(body, "/v1/score")
    assert (status, answer["error"]["param"]) == (400, param) and said in answer["error"]["message"]


@pytest.mark.parametrize(
    "more",
    [{"temperature": 0.5}, {"n": 2}, {"stream": True}, {"top_logprobs": 3}, {"tools": [{}]}, {"stop": ["x"]},
     {"max_tokens": 0}, {"weights": {}}, {"messages": CONVERSATIONS}, {"logprobs": 1}],
    ids=str,
)  # fmt: skip
def test_a_chat_names_fields_that_a_reward_model_cannot_honour(rewards: Running, more: dict[str, Any]) -> None:
    status, _, answer = rewards.ask({"messages": ASSISTANT, **more}, "/v1/chat/completions")
    assert (status, answer["error"]["param"]) == (400, next(iter(more)))


def test_models_of_the_other_kind_say_where_to_ask(rewards: Running, server: Running) -> None:
    status, _, body = rewards.ask({"prompt": "a"})
    assert status == 404 and "tiny is a reward model and generates no text" in body["error"]["message"]
    status, _, body = server.ask({"messages": ASSISTANT}, "/v1/score")
    assert status == 404 and "tiny generates text and has no scores" in body["error"]["message"]


class Held(OutputListener):
    """Holds the engine up at its outputs until it may go on."""

    def __init__(self) -> None:
        super().__init__(lambda outputs: None)
        self.holds, self.may_go_on = threading.Event(), threading.Event()

    def outputs(self, values: list[float]) -> None:
        self.holds.set()
        self.may_go_on.wait(60)


def test_a_full_queue_is_429_and_a_client_that_is_gone_is_not_scored(rewards: Running) -> None:
    held, text = Held(), text_to_score(rewards.served, ASSISTANT)
    rewards.engine.submit([(text, held)])
    assert held.holds.wait(60)  # else others end in the same step, and are not cancelled
    body = json.dumps({"model": NAME, "messages": [ASSISTANT] * 40}).encode()
    try:
        with socket.create_connection(("127.0.0.1", rewards.port)) as connection:
            head = ("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n")  # fmt: skip
            connection.sendall(head.encode() + body)
            wait_for(lambda: rewards.engine.num_live() == 41)
            status, headers, answer = rewards.ask({"messages": [ASSISTANT] * 3}, "/v1/score")
        assert status == 429 and 1 <= int(headers["retry-after"]) <= 60 and "try again" in answer["error"]["message"]
        wait_for(lambda: len(rewards.engine._cancelled) == 40)
        before = rewards.engine._engine.num_tokens
    finally:
        held.may_go_on.set()
    wait_for(lambda: rewards.engine.num_live() == 0)
    assert rewards.engine._engine.num_tokens - before <= 3 * len(text.tokens) and rewards.engine.free_tokens() == 400


def test_outputs_that_are_no_numbers_are_an_error(rewards: Running) -> None:
    weight, tokens = rewards.served.model.embedding.weight.data, rewards.served.tokenizer.encode(["365"])[0]
    before = weight.clone()
    weight[tokens] = float("nan")
    try:
        status, _, body = rewards.ask({"messages": [ASSISTANT, [{"role": "assistant", "content": "365"}]]}, "/v1/score")
    finally:
        weight.copy_(before)
    assert status == 500 and "the model has failed" in body["error"]["message"]
    assert score(rewards, ASSISTANT) == score(rewards, [ASSISTANT])


def reward_chat(server: Running) -> RewardChat:
    return RewardChat(endpoint=Endpoint(url=server.address, permissions=allowed(server.address)), model=NAME,
                      require_echo=True)  # fmt: skip


@pytest.mark.slow
def test_a_pipeline_asks_the_server_and_the_model_in_this_process_alike(
    rewards: Running, server: Running, model: tuple[Path, Any], tmp_path: Path
) -> None:
    local = LocalReward(model=lambda: served_reward(folder=model[0], name=NAME, precision="fp32"), room_gb=0.01)
    for number, chat in enumerate((reward_chat(rewards), local)):
        asker = Asker(chat=chat, journal=Journal(file=tmp_path / f"{number}.jsonl"))
        for _ in range(2):  # the second time from the journal
            replies = {end.question.index: end for end in asker.ask(Question(messages, index=index)
                       for index, messages in enumerate(CONVERSATIONS))}  # fmt: skip
            texts = [replies[index].said.text for index in range(12)]  # type: ignore[union-attr]
            assert all(text == json.dumps(json.loads(text), sort_keys=True) for text in texts)
            for text, expected in zip(texts, score(rewards, CONVERSATIONS), strict=True):
                assert json.loads(text) == pytest.approx(expected, abs=1e-5)  # the test's server reads shorter pieces
    said, over_http = local.say(ASSISTANT), reward_chat(rewards).say(ASSISTANT)
    assert said == replace(over_http, text=said.text, seconds=said.seconds)
    local.close()
    with pytest.raises(EndpointError, match="the last message must be the assistant's"):
        reward_chat(rewards).say(ASSISTANT[:1])
    with pytest.raises(EndpointError, match="no scores of a reward model"):
        reward_chat(server).say([{"role": "user", "content": "the cat"}])


def test_what_a_local_model_cannot_score_is_a_sentence(folder: tuple[Path, Any], model: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match="is not a reward model"):
        LocalReward(model=lambda: served_folder(folder=folder[0], precision="fp32")).ready()
    with pytest.raises(UserError, match="generates no text"):
        LocalChat(model=lambda: served_reward(folder=model[0], precision="fp32")).ready()
    with pytest.raises(UserError, match=r"5 outputs .* but there are 2 attributes"):
        served_reward(folder=model[0], precision="fp32", attributes=["a", "b"])
    with pytest.raises(UserError, match="a weight for taste"):
        served_reward(folder=model[0], precision="fp32", weights={"taste": 1.0})
    (bare := model[0].parent / "bare").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((model[0] / name).read_bytes())
    with pytest.raises(UserError, match="has no chat template"):
        served_reward(folder=model[0], tokenizer=bare, precision="fp32")
    names = ["_", "_", "good", "_", "short"]
    local = LocalReward(model=lambda: served_reward(folder=model[0], precision="fp32", attributes=names), room_gb=1e-4)
    assert sorted(json.loads(local.say([{"role": "assistant", "content": "a"}]).text)) == ["good", "short"]
    plain = served_reward(folder=model[0], name="mine", precision="fp32", context=100, weights={"coherence": 2.0})
    assert (plain.name, plain.context) == ("mine", 100) and plain.reward is not None
    assert plain.reward.score(dict.fromkeys(plain.reward.names, 1.5)) == 3.0
    assert str(["good", "short"]) in str(local.identity()) and local.longest_answer_tokens() == 0
    for messages, said in (([{"role": "assistant", "content": "cat " * 300}], "raise room_gb"),
                           ([], "the last message must be the assistant's"),
                           ([{"role": "user", "content": "a"}], "must be the assistant's")):  # fmt: skip
        with pytest.raises(DataError, match=said) as error:
            local.say(messages)
        assert not isinstance(error.value, UserError)  # which would end the run
    local.close()


@pytest.mark.slow
def test_the_command_serves_a_reward_model_and_tells_its_key_to_nobody(model: tuple[Path, Any], tmp_path: Path) -> None:
    server = Process(model[0], tmp_path / "output.txt", "--api-key-env", "SERVE_KEY", "--attributes", "_,good,_,_,long",
                     "--score-weights", "good=1,long=-0.5", "--name", "tiny")  # fmt: skip
    body = {"model": "tiny", "messages": ASSISTANT}
    try:
        assert server.begin(body, "sk-wrong", "/v1/score").getresponse().status == 401
        found = json.loads(server.begin(body, KEY, "/v1/score").getresponse().read())["data"][0]
        assert found["score"] == found["scores"]["good"] - 0.5 * found["scores"]["long"]
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
    finally:
        server.process.kill()
    assert KEY not in server.output.read_text() and "Traceback" not in server.output.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--attributes", "a,b"], "is not a reward model"), (["--score-weights", "a=1"], "is not a reward model"),
     (["--score-weights", "a"], "is not NAME=NUMBER"), (["--score-weights", "a=1,a=2"], "two weights")],
    ids=str,
)  # fmt: skip
def test_options_of_reward_models_are_refused_elsewhere(
    folder: tuple[Path, Any], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemo_vfm.cli.main import main

    try:
        assert main(["serve", str(folder[0]), "--precision", "fp32", "--room-gb", "1e-9", *words]) == 2  # never runs
    except SystemExit as error:
        assert error.code == 2
    assert said in capsys.readouterr().err
