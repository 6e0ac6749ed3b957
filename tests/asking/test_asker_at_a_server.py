"""Tests an asker against a server with faults: it ends, within its tries, and shows no key."""

import re

import pytest

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint, EndpointDenied
from tests.support.chat_server import allowed, answer, chat_server, drip, flood, half, hang, status

KEY = "canary-key-5531-x"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as state:
        state.reply = lambda question: answer(f"answer to {question['messages'][0]['content']}")
        yield state


def asker(server, folder, *, timeout_s=5.0, tries=4, **pace):
    endpoint = Endpoint(
        url=server.url, permissions=allowed(server.url, "CANARY_API_KEY"), timeout_s=timeout_s,
        max_response_mb=1.0,
    )  # fmt: skip
    chat = Chat(endpoint=endpoint, model="tiny", max_tokens=9)
    settings = {"max_wait_s": 0.01} | pace
    return Asker(chat=chat, journal=Journal(file=folder / "answers.jsonl"), tries=tries, pace=Pace(**settings))


def ask(asker, number=6):
    return list(asker.ask(Question([{"role": "user", "content": f"q{n}"}], index=n) for n in range(number)))


def texts(found):
    return {one.question.index: one.said.text for one in found if isinstance(one, Reply)}


def test_faults_that_pass_leave_no_trace(server, tmp_path):
    server.faults = [
        status(500), half, status(429, b"", Retry_After="100000"), status(503), status(529), status(200, b"{"),
        status(200, b"{}"[:1]), status(408), hang(1),
    ]  # fmt: skip
    found = texts(ask(asker(server, tmp_path, timeout_s=0.5, tries=9)))
    assert found == {number: f"answer to q{number}" for number in range(6)}


@pytest.mark.parametrize(
    "fault", [status(500, b"out of memory"), half, hang(5), drip], ids=["500", "half", "hang", "drip"]
)
def test_a_storm_ends_after_so_many_tries_a_question_and_nothing_is_kept(server, tmp_path, fault):
    server.always = fault
    found = ask(asker(server, tmp_path, timeout_s=0.4, tries=2), 3)
    assert len(found) == 3 and all(isinstance(one, Failure) and "2 attempts failed" in one.reason for one in found)
    assert len(server.paths) <= 6 and not (tmp_path / "answers.jsonl").read_bytes()


@pytest.mark.parametrize(
    "fault", [status(400, b"too long"), status(422), flood(True), status(200, b'{"choices": []}'), status(200, b"3")]
)
def test_what_cannot_get_better_is_asked_once(server, tmp_path, fault):
    server.always = fault
    found = ask(asker(server, tmp_path), 3)
    assert [type(one) for one in found] == [Failure] * 3 and len(server.paths) == 3
    assert not (tmp_path / "answers.jsonl").read_bytes()


def test_a_key_that_is_revoked_ends_the_run_and_what_was_paid_for_is_kept(server, tmp_path):
    server.faults, server.always = [None] * 3, status(401, f"key {KEY} was revoked".encode())
    with pytest.raises(EndpointDenied, match="401") as caught:
        ask(asker(server, tmp_path, most=1))
    assert KEY not in repr(caught.value)
    server.always, before = None, len(server.paths)
    assert len(texts(ask(asker(server, tmp_path)))) == 6 and len(server.paths) == before + 3


def test_a_service_that_is_not_there_is_waited_for_and_then_ends_the_run(server, tmp_path):
    gone = server.url.replace(server.url.rpartition(":")[2], "1/v1")
    endpoint = Endpoint(url=gone, permissions=allowed(gone))
    chat = Chat(endpoint=endpoint, model="tiny", max_tokens=9)
    with pytest.raises(UserError, match=rf"nothing has listened .* {re.escape(gone)} cannot be reached.* Start the"):
        ask(Asker(chat=chat, pace=Pace(patience_s=0.05, max_wait_s=0.02)))


def test_the_key_is_in_no_answer_that_is_kept_and_in_no_reason(server, tmp_path):
    server.faults = [status(400, KEY.encode()), status(500, KEY.encode())]
    server.reply = lambda question: answer(f"it is {KEY}", model=KEY, system_fingerprint=KEY)
    found = ask(asker(server, tmp_path, tries=1))
    assert KEY not in repr(found) and KEY not in (tmp_path / "answers.jsonl").read_text()
    assert "it is ***" in repr(found) and sum(isinstance(one, Failure) for one in found) == 2


def test_what_a_model_says_is_kept_and_given_back_as_it_is(server, tmp_path):
    said = "{{7*7}} ${env:HOME} </s><|im_end|> \ud800 \x00\n=cmd()|' /C calc'!A0 ../../etc/passwd"
    server.reply = lambda _: answer(said)
    assert texts(ask(asker(server, tmp_path), 1)) == {0: said}
    server.always = status(500)
    assert texts(ask(asker(server, tmp_path), 1)) == {0: said}
    assert {path.name for path in tmp_path.iterdir()} == {"answers.jsonl", "answers.jsonl.lock"}
