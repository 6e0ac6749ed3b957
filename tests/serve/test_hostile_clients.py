"""Tests that clients that send nothing, too much, or nonsense neither keep others waiting nor break the server."""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h11
import pytest

from nemo_vfm.serve.openai_api import http_server
from tests.serve.test_leaving import wait_for
from tests.support.served_http import Running, reward_folder, running

HALF_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-More: "
#: Fits into the context, and 40 of them are more than a short request.
LONG_PROMPT = "a" * 2000


def head(num_bytes: int) -> bytes:
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {num_bytes}\r\n\r\n").encode()  # fmt: skip


def connected(server: Running, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(sent)
    return connection


def test_a_head_that_does_not_end_is_answered_and_closed_although_more_of_it_comes(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(http_server._LIMITS_S, h11.IDLE, 0.3)
    with connected(server, HALF_HEAD) as connection:
        connection.settimeout(0.05)
        answer = b""
        while not answer:
            with suppress(TimeoutError):
                answer = connection.recv(1000)
            if not answer:
                connection.sendall(b"x")
        connection.settimeout(60)
        with suppress(ConnectionResetError):
            while more := connection.recv(1000):  # the body may come behind the head; then the connection is closed
                answer += more
        assert answer.startswith(b"HTTP/1.1 400") and b"did not arrive within 10 s" in answer


def test_a_body_that_never_ends_is_closed_also_after_its_answer(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(http_server._LIMITS_S, h11.SEND_BODY, 0.3)
    with connected(server, head(1000).replace(b"localhost", b"elsewhere") + b"{") as connection:
        assert connection.recv(20).startswith(b"HTTP/1.1 421")
        with suppress(ConnectionError):
            while connection.recv(1000):
                connection.sendall(b" ")


@pytest.mark.parametrize("sent", [HALF_HEAD, b"", head(1000) + b"{"], ids=["heads", "nothing", "bodies"])
def test_requests_that_never_end_keep_no_other_out(
    folder: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", 40)
    monkeypatch.setattr(http_server, "_CROWD", 20)
    monkeypatch.setattr(http_server, "_PATIENCE_S", 0.1)
    with running(folder[0]) as server, ExitStack() as open_connections:
        for _ in range(60):
            open_connections.enter_context(connected(server, sent))
        wait_for(lambda: answered(server))


def answered(server: Running) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    finally:
        connection.close()


class SlowTokenizer:
    """Holds long prompts up until they may go on, and counts them."""

    def __init__(self, encode: Any) -> None:
        self._encode, self.may_go_on, self.lock = encode, threading.Event(), threading.Lock()
        self.now, self.most, self.read = 0, 0, 0

    def __call__(self, texts: list[str]) -> list[list[int]]:
        if len(texts[0]) < len(LONG_PROMPT):
            return list(self._encode(texts))
        with self.lock:
            self.now, self.read = self.now + 1, self.read + 1
            self.most = max(self.most, self.now)
        self.may_go_on.wait(60)
        with self.lock:
            self.now -= 1
        return [[1]]


@pytest.fixture
def slow(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowTokenizer]:
    tokenizer = SlowTokenizer(server.served.tokenizer.encode)
    monkeypatch.setattr(server.served.tokenizer, "encode", tokenizer)
    yield tokenizer
    tokenizer.may_go_on.set()


def test_long_requests_keep_no_short_one_waiting_and_those_whose_clients_left_are_not_read(
    server: Running, slow: SlowTokenizer
) -> None:
    body = json.dumps({"model": "tiny", "prompt": [LONG_PROMPT] * 40, "max_tokens": 1}).encode()
    guard = server.server._guard
    with ExitStack() as clients:
        for _ in range(10):
            clients.enter_context(connected(server, head(len(body)) + body))
        wait_for(lambda: slow.now == slow.most == 3 and guard.active == 10)
        assert server.ask({"prompt": "a", "max_tokens": 1})[0] == 200
    wait_for(lambda: guard.active == 0)
    slow.may_go_on.set()
    wait_for(lambda: slow.now == 0)
    assert server.ask({"prompt": [LONG_PROMPT] * 40, "max_tokens": 1})[0] == 200
    assert slow.most <= 4 and slow.read == 3 + 40


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/v1/completions", {"prompt": "a" * 16_385}, "prompt"),
        ("/v1/completions", {"prompt": ["a", [1, 2], "a b " * 5000]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 16_385}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 1000}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "", "x": [10**3999] * 5}]}, "messages"),
    ],
    ids=range(5),
)
def test_what_is_too_long_for_any_tokenizer_is_refused_unread(
    server: Running, slow: SlowTokenizer, monkeypatch: pytest.MonkeyPatch, path: str, more: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr(type(server.served.chat), "tokens", lambda *_, **__: pytest.fail("it is read"))
    status, _, body = server.ask({"max_tokens": 1, **more}, path)
    assert (status, body["error"]["param"]) == (400, param) and slow.read == 0
    assert "more than 16,384 characters, 8 for each of the 2,048 tokens" in body["error"]["message"]


#: Written into the body as text: what is so deep cannot be made of objects, or not below the frames of a test.
DEEP = {'"@deep list"': "[" * 950 + "]" * 950, '"@deep map"': '{"a":' * 950 + "1" + "}" * 950}
NASTY: tuple[Any, ...] = (
    10**3999, -(10**3999), 1e308, 1 << 63, True, "\ud800", "\udfff" * 300, "", "\0", {"\ud800": "\udc00"}, [], [[]], {},
    [10**3999], ["\ud800"], [None], "@deep list", "@deep map",
    [{"role": "\ud800", "content": "\ud800"}], [{"role": "user", "content": 10**3999}],
    [{"role": "user", "content": [{"type": "text", "text": 10**3999}]}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "\ud800"}]}],
    [{"role": "user", "content": "@deep list"}],
    [{"role": "user", "content": "x", "tool_calls": [{"function": {"arguments": "[" * 950 + "]" * 950}}]}],
    [{"role": "user", "content": "x", "tool_calls": [{"function": {"arguments": '{"a":' * 950 + "1" + "}" * 950}}]}],
)  # fmt: skip
FIELDS = {
    "/v1/completions": ("prompt", "max_tokens", "temperature", "top_k", "stop", "echo", "stream_options", "suffix",
                        "model", "\ud800"),
    "/v1/chat/completions": ("messages", "max_completion_tokens", "top_logprobs", "tools", "response_format", "model"),
    "/v1/score": ("messages", "text_1", "text_2", "queries", "encoding_format", "model", "\ud800"),
}  # fmt: skip


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("judge") / "tiny"
    reward_folder(folder)
    with running(folder) as found:
        yield found


@pytest.mark.parametrize("path", FIELDS)
def test_no_value_of_any_field_is_more_than_the_server_can_refuse(server: Running, judge: Running, path: str) -> None:
    messages: dict[str, Any] = {"messages": [{"role": "assistant", "content": "a"}]}
    usual = {"/v1/completions": {"prompt": "a", "max_tokens": 1}, "/v1/chat/completions": {**messages, "max_tokens": 1}}
    for field in FIELDS[path]:
        for value in NASTY:
            body = {"model": "tiny", **usual.get(path, messages), field: value}
            status, said = posted(judge if path == "/v1/score" else server, path, body)
            assert status == 200 or (400 <= status < 500 and said), (field, value, status)


def posted(server: Running, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """(status, what was said where it is an error)."""
    text = json.dumps(body)
    for name, deep in DEEP.items():
        text = text.replace(name, deep)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, "" if answer.status == 200 else json.loads(content)["error"]["message"]
    finally:
        connection.close()


@pytest.mark.parametrize(
    "body", [b'{"model":', b'{"model": "tiny", "prompt": "a", "stream": true, "max_tokens": 2000, "temperature": 0}']
)
def test_a_client_that_hangs_up_is_not_worth_a_line(
    server: Running, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], body: bytes
) -> None:
    caplog.set_level(logging.WARNING)
    with connected(server, head(len(body) + (not body.endswith(b"}"))) + body):
        wait_for(lambda: server.server._guard.active == 1)
    wait_for(lambda: server.server._guard.active == 0 and server.engine.num_live() == 0)
    assert not caplog.records and capfd.readouterr() == ("", "")
