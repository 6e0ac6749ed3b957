"""Tests what the server refuses, with which status, and that its key is nowhere to be read."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.serve.generation_settings import generation_settings
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.http_server import AccessGuard, Listen, names_of
from nemo_vfm.serve.openai_api.request_fields import ChatRequest, CompletionRequest, SamplingFields
from nemo_vfm.serve.served_folder import served_folder
from tests.support.served_http import Running, running

KEY = "sk-canary-5f0c2e9b7d"
ASK: dict[str, Any] = {"prompt": "a", "max_tokens": 2}


SAMPLED: dict[str, Any] = {
    "n": 2, "temperature": 0.5, "top_p": 0.5, "min_p": 0.5, "top_k": 3, "seed": 2, "stop": ["x"], "stream": True,
    "max_tokens": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
    "logit_bias": {"5": 1}, "stop_token_ids": [5], "min_tokens": 2,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "base", "honoured"), [
    (CompletionRequest, {"prompt": "a"}, SAMPLED | {"prompt": "b", "echo": True, "logprobs": 1}),
    (ChatRequest, {"messages": [{"role": "user", "content": "a"}]}, SAMPLED | {
        "messages": [{"role": "user", "content": "b"}], "max_completion_tokens": 4, "logprobs": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }),
], ids=["completion", "chat"])  # fmt: skip
def test_every_field_changes_what_is_asked_or_is_refused_and_null_is_absent(
    kind: type[SamplingFields], base: dict[str, Any], honoured: dict[str, Any]
) -> None:
    def told(more: dict[str, Any]) -> str:
        found = kind.read({"model": "m", "seed": 1} | base | more, 9)
        return f"{found!r} {vars(found.choice())}"

    assert len({told({}), *(told({name: value}) for name, value in honoured.items())}) == len(honoured) + 1
    assert {told({name: None}) for name in honoured.keys() - base.keys() - {"seed"}} == {told({})}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert told(usage) != told({"stream": True})
    for name in (kind.model_fields.keys() | kind.neutral.keys()) - honoured.keys() - {"model"}:
        with pytest.raises(ApiError) as refused:
            told({name: 7 if name == "user" else "x"})
        assert refused.value.param == name


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty", "must be a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be a number from 0.01 to 100"),
        ({"logit_bias": {"400": 1}}, "logit_bias", "an object of tokens from 0 to 399 and numbers from -100 to 100"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "numbers from -100 to 100"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "tokens from 0 to 399"),
        ({"logit_bias": [5]}, "logit_bias", "tokens from 0 to 399"),
        ({"stop_token_ids": [400]}, "stop_token_ids", "a list of whole numbers from 0 to 399"),
        ({"stop_token_ids": [True]}, "stop_token_ids", "a list of whole numbers"),
        ({"min_tokens": 17, "max_tokens": 16}, "min_tokens", "must be at most max_tokens (16)"),
        ({"best_of": 3}, "best_of", "is not supported"),
        ({"suffix": "end"}, "suffix", "is not supported"),
        ({"user": 7}, "user", "must be a text"),
        ({"guided_json": {}}, "guided_json", "is not a field of this server"),
        ({"temperatur": None}, "temperatur", "is not a field of this server"),
        ({"temperature": "hot"}, "temperature", 'must be a number from 0 to 100, got "hot"'),
        ({"temperature": True}, "temperature", "must be a number"),
        ({"n": 0}, "n", "must be a whole number from 1 to 128"),
        ({"max_tokens": -1}, "max_tokens", "must be a whole number from 0"),
        ({"max_tokens": 0}, "max_tokens", "generates nothing; add echo: true to score"),
        ({"max_tokens": 2048}, "max_tokens", "exceed the model's context of 2,048 tokens"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"stop": [""]}, "stop", "each of 1 to 256 characters"),
        ({"stop": "x" * 257}, "stop", "each of 1 to 256 characters"),
        ({"temperature": 1e-9}, "temperature", "must be 0 (greedy) or at least 0.001"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
        ({"prompt": []}, "prompt", "prompt must be a text, a list of tokens"),
        ({"prompt": [[]]}, "prompt", "at least one"),
        ({"prompt": [400]}, "prompt", "whole numbers from 0 to 399"),
        ({"prompt": [[1, True]]}, "prompt", "whole numbers"),
        ({"prompt": "x", "n": 65}, "prompt", "is longer than the queue of 64"),
        ({"model": 3}, "model", "model must be a text"),
    ],
    ids=str,
)
def test_a_field_that_would_be_ignored_or_is_wrong_is_named(
    server: Running, more: dict[str, Any], param: str, said: str
) -> None:
    status, _, body = server.ask({**ASK, **more})
    assert (status, body["error"]["param"]) == (400, param) and said in body["error"]["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [({"tools": [{}]}, "tools"), ({"response_format": {"type": "json_object"}}, "response_format"),
     ({"top_logprobs": 2}, "top_logprobs"), ({"messages": []}, "messages"),
     ({"messages": [{"role": "user"}]}, "messages"),
     ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"), ({"echo": True}, "echo"),
     ({"tool_choice": "required"}, "tool_choice"), ({"chat_template_kwargs": ["x"]}, "chat_template_kwargs"),
     ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"), ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
     ({"chat_template_kwargs": {"messages": []}}, "messages")],
    ids=str,
)  # fmt: skip
def test_chats_name_such_fields_too(server: Running, more: dict[str, Any], param: str) -> None:
    status, _, body = server.ask({"messages": [{"role": "user", "content": "x"}], **more}, "/v1/chat/completions")
    assert (status, body["error"]["param"]) == (400, param)


def test_fields_that_ask_for_nothing_pass(server: Running) -> None:
    more = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "best_of": 1,
        "suffix": None,
        "logit_bias": {},
        "user": "me",
        "repetition_penalty": 1,
        "stop_token_ids": [],
        "min_tokens": 0,
    }
    assert server.ask({**ASK, **more})[0] == 200
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "tools": [], "tool_choice": "auto",
            "parallel_tool_calls": True, "chat_template_kwargs": {"enable_thinking": False}, "user": "me"}  # fmt: skip
    assert server.ask(chat, "/v1/chat/completions")[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [(b"{", 400, "not JSON"), (b"[]", 400, "must be a JSON object"), (b'{"a": NaN}', 400, "not JSON"),
     (b"\xff", 400, "not JSON"), (b"[" * 100_000, 400, "not JSON"), (b'{"a": ' + b"9" * 5000 + b"}", 400, "not JSON")],
    ids=range(6),
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused(server: Running, body: bytes, status: int, said: str) -> None:
    found, _, answer = server.ask(body)
    assert found == status and said in answer["error"]["message"]


def test_only_json_is_read_and_only_known_paths_answer(server: Running) -> None:
    assert server.ask(ASK, Content_Type="text/plain")[0] == 415
    status, _, body = server.ask(ASK, "/v1/embeddings")
    assert status == 404 and "this server answers /v1/completions" in body["error"]["message"]
    assert server.call("GET", "/v1/completions")[0] == 405


@pytest.fixture(scope="module")
def guarded(folder: tuple[Path, Any]) -> Iterator[Running]:
    """A server with a key, small in all ways."""
    with running(folder[0], key=KEY, room_tokens=100, max_waiting=1, max_body=2000, at_once=2) as found:
        yield found


def asked(server: Running, body: Any, key: str = KEY, **headers: str) -> tuple[int, dict[str, str], Any]:
    return server.ask(body, Authorization=f"Bearer {key}", **headers)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "", "10.0.0.1", "[::2]:80"])
def test_a_foreign_host_is_refused(guarded: Running, host: str) -> None:
    status, _, body = asked(guarded, ASK, Host=host)
    assert status == 421 and "--allow-name" in body["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:5"])
def test_names_of_this_machine_are_taken(guarded: Running, host: str) -> None:
    assert asked(guarded, ASK, Host=host)[0] == 200


@pytest.mark.parametrize("key", ["", "sk-other", KEY[:-1], KEY + "x", "ключ".encode().decode("latin1")])
def test_another_key_is_refused_everywhere_but_at_health(guarded: Running, key: str) -> None:
    status, headers, body = asked(guarded, ASK, key)
    assert status == 401 and headers["www-authenticate"] == "Bearer" and KEY not in json.dumps(body)
    assert guarded.call("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 401
    assert guarded.call("GET", "/health")[0] == 200


def test_a_body_beyond_its_bound_is_refused_with_and_without_its_length(guarded: Running) -> None:
    status, _, body = asked(guarded, {"prompt": "x" * 3000})
    assert status == 413 and "2,000 bytes" in body["error"]["message"]
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
        head = ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n")  # fmt: skip
        connection.sendall(head.encode() + b"7d0\r\n" + b"x" * 2000 + b"\r\n" + b"7d0\r\n" + b"x" * 2000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_text_beyond_the_whole_room_is_refused(guarded: Running) -> None:
    status, _, body = asked(guarded, {"prompt": [1] * 90, "max_tokens": 12})
    assert status == 400 and "needs room for 101 tokens, but there is room for 100" in body["error"]["message"]


def test_a_request_that_finds_no_place_in_the_queue_is_told_when_to_come_back(guarded: Running) -> None:
    assert asked(guarded, {**ASK, "prompt": [[1]] * 2})[0] == 400  # more than ever wait
    slow = _Slow()
    stuck = [guarded.engine.submit([(_long(), slow)])[0] for _ in range(3)]
    try:
        status, headers, body = asked(guarded, ASK)
    finally:
        guarded.engine.cancel(stuck)
        slow.may_go_on.set()
    assert status == 429 and 1 <= int(headers["retry-after"]) <= 60 and "try again" in body["error"]["message"]
    assert all(slow.have_ended.acquire(timeout=60) for _ in stuck)


def test_a_text_on_which_the_model_fails_is_an_error_whole_and_streamed(guarded: Running) -> None:
    import openai

    weight = guarded.served.model.embedding.weight.data
    before = weight[9].clone()
    weight[9] = float("nan")
    try:
        assert asked(guarded, {**ASK, "prompt": [9]})[0] == 500
        client = openai.OpenAI(base_url=guarded.address, api_key=KEY, max_retries=0)
        with client, pytest.raises(openai.APIError, match="the model has failed on this text"):
            list(client.completions.create(model="tiny", prompt=[9], stream=True))
    finally:
        weight[9] = before
    assert asked(guarded, {**ASK, "prompt": [9]})[0] == 200


class _Slow:
    """Holds the engine up at its first token until it may go on."""

    def __init__(self) -> None:
        self.may_go_on, self.have_ended = threading.Event(), threading.Semaphore(0)

    def prompt(self, results: Any) -> None: ...

    def token(self, result: Any) -> bool:
        return self.may_go_on.wait(60)

    def end(self, ending: Any) -> None:
        self.have_ended.release()


def _long() -> Any:
    from nemo_vfm.language.token_choice import Choice
    from nemo_vfm.serve.continuous.text_request import TextRequest

    return TextRequest((1,), 100, Choice(), 0)


def test_other_machines_need_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(UserError, match="--api-key-env"):
            Listen(host=host)
        Listen(host=host, key=KEY)
    for host in ("127.0.0.1", "localhost", "::1"):
        Listen(host=host)


def test_a_server_for_other_machines_answers_to_its_own_names_and_to_addresses() -> None:
    guard = AccessGuard(lambda *_: None, names=names_of("0.0.0.0", ["llm.example"]), any_address=True, key=KEY)  # type: ignore[arg-type, return-value]
    known = [name for name in ("llm.example", socket.gethostname().lower(), "10.0.0.1", "evil.example", "1.2.3.4.evil")
             if guard._is_known(name)]  # fmt: skip
    assert known == ["llm.example", socket.gethostname().lower(), "10.0.0.1"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("eos_token_id", value) for value in ("x", True, 1.5, -1, 400, [1, "x"], [False], [[1]], {}, 10**4000)]
    + [("bos_token_id", "x"), ("bos_token_id", [1]), ("pad_token_id", -2), ("pad_token_id", 400)],
    ids=range(14),
)  # fmt: skip
def test_a_token_that_there_is_not_is_refused_when_the_model_is_loaded(
    folder: tuple[Path, Any], tmp_path: Path, name: str, value: Any
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder[0].iterdir():
        if file.name != "generation_config.json":
            (copy / file.name).symlink_to(file)
    (copy / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(DataError, match=f"generation_config.json of copy says {name}: .*null, a token from 0 to 399"):
        served_folder(folder=copy, precision="fp32")


def test_one_token_a_list_and_none_end_a_text(tmp_path: Path) -> None:
    for value, tokens in ((None, []), (7, [7]), ([7, 9], [7, 9]), ([], [])):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value, "pad_token_id": -1}))
        assert generation_settings(400, tmp_path).stop == frozenset(tokens)
