"""Tests a client against a faulty server: it answers or refuses within time and limits, and shows no key."""

import math
import threading
import time
from types import SimpleNamespace

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import (
    Endpoint,
    EndpointBusy,
    EndpointDenied,
    EndpointError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnreachable,
)
from nemo_vfm.core.network.permission import AllowedHost, Permissions
from nemo_vfm.core.network.retry import retry_after
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.core.secret import conceal
from tests.support.chat_server import allowed, answer, chat_server, drip, drip_headers, flood, half, hang, status

KEY = "canary-key-5531-x"
ASK = [{"role": "user", "content": "what is it?"}]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as state:
        yield state


def chat(server, require_echo=False, **changes):
    settings = {"permissions": allowed(server.url, "CANARY_API_KEY"), "timeout_s": 5.0}
    endpoint = Endpoint(**({"url": server.url} | settings | changes))
    return Chat(endpoint=endpoint, model="tiny-vlm", max_tokens=9, require_echo=require_echo)


def test_a_question_is_asked_as_openai_documents_it_and_the_answer_is_read(server):
    said = chat(server).say(ASK)
    assert (said.text, said.ending, said.model) == ("a cat sits on a wall", "success", "tiny-vlm")
    assert (said.tokens_in, said.tokens_out, said.revision) == (11, 6, "fp_1")
    expected = {"model": "tiny-vlm", "messages": ASK, "max_tokens": 9, "temperature": 0.0, "stream": False}
    assert server.questions == [expected] and server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_whatever_changes_an_answer_changes_the_request_and_the_identity_and_the_place_does_not():
    here = Endpoint(url="http://127.0.0.1:1/v1", permissions=allowed("http://127.0.0.1:1/v1"))
    there = Endpoint(url="http://127.0.0.1:2/v1", permissions=allowed("http://127.0.0.1:2/v1"))
    usual = {"endpoint": here, "model": "m", "max_tokens": 9, "temperature": 0.0}
    changes = (
        {}, {"model": "n"}, {"max_tokens": 8}, {"max_completion_tokens": 9}, {"temperature": 0.5},
        {"temperature": None}, {"top_p": 0.5}, {"seed": 0}, {"response_format": {"type": "json_object"}},
        {"extra": {"reasoning_effort": "low"}},
        {"extra": {"chat_template_kwargs": {"enable_thinking": False}}},
    )  # fmt: skip
    found = [Chat(**usual | change) for change in changes]
    for seen in (Chat.identity, lambda one: one.request(ASK)):
        assert len({str(seen(one)) for one in found}) == len(changes)
        assert seen(Chat(**usual | {"endpoint": there, "require_echo": True})) == seen(found[0])
    places = {one.place() for one in (found[0], found[1], Chat(**usual | {"endpoint": there}))}
    assert found[0].identity() == ["m", 9, 0.0], "what older journals have stays known"
    assert len(places) == 3 and found[2].place() == found[0].place()


def test_a_request_holds_what_the_recipe_says_and_nothing_that_it_takes_away(server):
    endpoint = Endpoint(url=server.url, permissions=allowed(server.url))
    usual = {"model": "m", "messages": ASK, "stream": False}
    for given, sent in (
        ({}, {"max_tokens": 256, "temperature": 0.0}),
        ({"max_completion_tokens": 7, "temperature": None}, {"max_completion_tokens": 7}),
        ({"top_p": 0.5, "seed": 0, "temperature": 1.0, "extra": {"a": {"b": [1, None]}}},
         {"max_tokens": 256, "temperature": 1.0, "top_p": 0.5, "seed": 0, "a": {"b": [1, None]}}),
    ):  # fmt: skip
        made = Chat(endpoint=endpoint, model="m", **given)
        made.say(ASK)
        assert server.questions[-1] == usual | sent
        assert made.longest_answer_tokens() == sent.get("max_completion_tokens", 256)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"max_completion_tokens": 0}, "at least 1"), ({"temperature": -1}, "at least 0"), ({"top_p": 0.0}, "above 0"),
     ({"extra": {"messages": []}}, "must not hold messages"), ({"extra": {"n": 2}}, "must not hold n"),
     ({"extra": {"top_p": 1}}, "must not hold top_p"), ({"extra": {"a": float("nan")}}, "cannot be sent as JSON")],
)  # fmt: skip
def test_fields_of_a_request_that_cannot_be_are_refused(changes, sentence):
    here = Endpoint(url="http://127.0.0.1:1/v1", permissions=allowed("http://127.0.0.1:1/v1"))
    with pytest.raises(ValueError, match=sentence):
        Chat(endpoint=here, model="m", **changes)


@pytest.mark.parametrize(
    ("body", "reason"),
    [({"error": {"message": "Use another field instead.", "code": "x"}}, "Use another field instead."),
     ({"object": "error", "message": "It is too long."}, "It is too long."), ({"error": "odd"}, '{"error": "odd"}'),
     (b"<html>", "<html>"), (b"", "nothing more")],
)  # fmt: skip
def test_a_refusal_is_told_in_the_services_own_words(server, body, reason):
    server.always = status(400, body)
    with pytest.raises(EndpointError) as found:
        chat(server).say(ASK)
    assert str(found.value) == f"the service at {server.url} answered 400 Bad Request: {reason}"


def test_the_query_of_an_address_is_part_of_every_request(server):
    assert chat(server, url=f"{server.url}?api-version=2024-10-21").say(ASK).text == "a cat sits on a wall"
    assert server.paths == ["/v1/chat/completions?api-version=2024-10-21"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("", None), ("soon", None), ("12", 12.0), ("1.5", 1.5), ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
     ("Thu, 01 Jan 1970 00:00:40 GMT", -60.0), ("-3", None)],
)  # fmt: skip
def test_the_wait_that_a_service_requests_is_seconds_or_a_moment(text, seconds, monkeypatch):
    monkeypatch.setattr("nemo_vfm.core.network.retry.time", SimpleNamespace(time=lambda: 100.0))
    assert retry_after(text) == seconds


def test_a_host_that_is_allowed_only_outside_the_network_is_not_asked_inside(server):
    origin = service_url(server.url).origin
    outside = Permissions((AllowedHost(origin, private=False),))
    with pytest.raises(UserError, match="allow_private"):
        chat(server, permissions=outside).say(ASK)
    assert not server.paths


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(status(429), EndpointBusy), (status(503), EndpointBusy), (status(529), EndpointBusy),
     (status(408), EndpointFault), (status(500), EndpointFault), (status(502), EndpointFault), (half, EndpointFault),
     (status(200, b"{"), EndpointFault), (status(200, answer("")), EndpointFault), (status(422), EndpointError)],
)  # fmt: skip
def test_a_refusal_a_fault_and_a_bad_question_are_told_apart_and_each_is_asked_once(server, fault, kind):
    server.always = fault
    with pytest.raises(EndpointError) as caught:
        chat(server).say(ASK)
    assert type(caught.value) is kind and len(server.paths) == 1


def test_a_service_that_is_not_there_refuses(server):
    gone = "http://127.0.0.1:1/v1"
    with pytest.raises(EndpointUnreachable, match="cannot be reached"):
        chat(server, url=gone, permissions=allowed(gone)).say(ASK)


def test_a_refusal_bears_the_wait_that_the_service_requests(server):
    absurd = (("86400", 86400.0), ("1e300", None), ("-5", None), ("nan", None), ("9" * 400, math.inf))
    for after, seconds in (("7", 7.0), ("0.5", 0.5), ("soon", None), ("", None), *absurd):
        server.always = status(429, b"", Retry_After=after)
        with pytest.raises(EndpointBusy) as caught:
            chat(server).say(ASK)
        assert caught.value.retry_after_s == seconds


@pytest.mark.parametrize("code", [400, 413, 415, 422])
def test_a_question_that_is_refused_is_not_asked_again(server, code):
    server.always = status(code, b'{"error": {"message": "too many pictures"}}')
    with pytest.raises(EndpointError, match="too many pictures"):
        chat(server).say(ASK)
    assert len(server.paths) == 1


@pytest.mark.parametrize("code", [301, 302, 307, 308, 401, 403, 404, 405])
def test_a_refusal_that_concerns_all_is_raised_as_such_at_once(server, code):
    server.always = status(code, b"no", Location="http://127.0.0.1:1/")
    with pytest.raises(EndpointDenied):
        chat(server).say(ASK)
    assert len(server.paths) == 1


@pytest.mark.parametrize("fault", [hang(20), drip, drip_headers], ids=["hang", "slow body", "slow headers"])
def test_slowness_of_any_kind_ends_in_time(server, fault):
    server.always = fault
    began = time.monotonic()
    with pytest.raises(EndpointTimeout, match=r"longer than timeout_s, 0\.3 s"):
        chat(server, timeout_s=0.3).say(ASK)
    assert time.monotonic() - began < 10


def test_a_socket_that_times_out_before_the_watchdog_wakes_says_the_same(server, monkeypatch):
    monkeypatch.setattr(threading.Timer, "start", lambda self: None)
    server.always = hang(20)
    with pytest.raises(EndpointTimeout, match=r"longer than timeout_s, 0\.3 s"):
        chat(server, timeout_s=0.3).say(ASK)


@pytest.mark.parametrize("declared", [True, False])
def test_ten_gigabytes_are_not_read(server, declared):
    server.always = flood(declared)
    with pytest.raises(EndpointError, match=r"max_response_mb, 1 MB"):
        chat(server, max_response_mb=1.0).say(ASK)
    assert server.flooded_mb < 100 and len(server.paths) == 1  # what is sent and not read fills some buffers


def test_a_compressed_answer_is_refused(server):
    server.always = status(200, b"\x1f\x8b", Content_Encoding="gzip")
    with pytest.raises(EndpointError, match="compressed"):
        chat(server).say(ASK)


@pytest.mark.parametrize(
    "body",
    [{}, [], 3, None, "x", {"choices": []}, {"choices": [{"message": None}]},
     {"choices": [{"message": {"content": 3}}]},
     {"choices": {"0": 1}}, answer("x", choices=[{"message": {"content": [{"type": "text"}]}}]),
     answer("x", usage=[1]), b"[" * 100_000, {"choices": [{"message": {"content": None}}]}],
)  # fmt: skip
def test_another_schema_is_a_failure_of_that_question(server, body):
    server.reply = lambda _: body
    with pytest.raises(EndpointError):
        chat(server).say(ASK)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_answer_is_a_failure(server, text):
    server.reply = lambda _: answer(text)
    with pytest.raises(EndpointError, match="returned nothing"):
        chat(server).say(ASK)


@pytest.mark.parametrize(
    ("finish", "refusal", "ending"),
    [("stop", None, "success"), ("length", None, "truncated"), ("content_filter", None, "blocked"),
     ("max_tokens", None, "truncated"), ("safety", None, "blocked"),
     ("stop", "I cannot", "blocked"), (None, None, "success")],
)  # fmt: skip
def test_how_an_answer_ended_is_told(server, finish, refusal, ending):
    message = {"content": "a cat", "refusal": refusal}
    server.reply = lambda _: answer("", choices=[{"finish_reason": finish, "message": message}])
    assert chat(server).say(ASK).ending == ending


@pytest.mark.parametrize(
    ("message", "thought", "text"),
    [({"content": "<think>\n1. Hm\n</think>\n\na cat"}, "1. Hm", "a cat"),
     ({"content": "Hm.\n</think>a cat"}, "Hm.", "a cat"),
     ({"reasoning": "Hm.", "content": "a cat", "reasoning_content": {}}, "Hm.", "a cat"),
     ({"content": "a cat", "reasoning_content": "Hm."}, "Hm.", "a cat"),
     ({"content": "a cat", "reasoning": "Hm."}, "Hm.", "a cat"),
     ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a cat"}]}, "", "a cat"),
     ({"content": "a cat", "reasoning_content": None}, "", "a cat")],
)  # fmt: skip
def test_what_a_model_thinks_is_apart_from_what_it_says(server, message, thought, text):
    server.reply = lambda _: answer("", choices=[{"finish_reason": "stop", "message": message}])
    said = chat(server).say(ASK)
    assert (said.thought, said.text, said.ending) == (thought, text, "success")


@pytest.mark.parametrize("message", [{"content": "<think>Hm"}, {"content": None, "reasoning_content": "Hm"},
                                     {"content": "", "reasoning": "Hm"}, {"reasoning": "Hm"}])  # fmt: skip
def test_a_thought_that_a_limit_cut_is_no_answer_and_the_limit_is_named(server, message):
    for finish, said in (
        ("length", "still reasoning when max_tokens was reached; raise max_tokens"),
        ("stop", "nothing"),
    ):
        server.reply = lambda _, finish=finish: answer("", choices=[{"finish_reason": finish, "message": message}])
        with pytest.raises(EndpointError, match=said) as found:
            chat(server).say(ASK)
        assert isinstance(found.value, EndpointFault) == (finish == "stop"), "asked again where that may help"


def test_surrogates_and_numbers_out_of_range_in_an_answer_do_no_harm(server):
    usage = {"prompt_tokens": 10**30, "completion_tokens": "7"}
    server.reply = lambda _: answer("a \ud800 cat", usage=usage)
    said = chat(server).say(ASK)
    assert (said.tokens_in, said.tokens_out) == (0, 0) and said.text == "a \ud800 cat"


def test_an_answer_that_bears_another_questions_name_is_refused(server):
    server.always = lambda handler, _: handler.send(200, answer("a dog", id="chatcmpl-nemo-vfm-" + "0" * 32))
    with pytest.raises(EndpointError, match="mixed them up"):
        chat(server).say(ASK)
    server.always = lambda handler, _: handler.send(200, answer("a dog"), X_Request_Id="nemo-vfm-" + "0" * 32)
    with pytest.raises(EndpointError, match="mixed them up"):
        chat(server).say(ASK)


def test_an_echo_can_be_demanded(server):
    with pytest.raises(EndpointError, match="require_echo"):
        chat(server, require_echo=True).say(ASK)
    server.always = lambda handler, _: handler.send(
        200, answer("a cat", id=f"chatcmpl-{handler.headers['X-Request-Id']}-0")
    )
    assert chat(server, require_echo=True).say(ASK).text == "a cat"


@pytest.mark.parametrize("value", ["", "  ", "two\nlines", "kéy"])
def test_a_key_that_is_absent_or_none_is_said_before_anything_is_sent(server, monkeypatch, value):
    monkeypatch.setenv("CANARY_API_KEY", value)
    with pytest.raises(EndpointDenied, match="CANARY_API_KEY") as caught:
        chat(server).say(ASK)
    assert not server.paths and (not value.strip() or value not in str(caught.value))


def test_no_key_is_sent_where_none_is_named(server):
    chat(server, permissions=allowed(server.url)).say(ASK)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("code", [400, 401, 500])
def test_a_server_that_repeats_the_key_does_not_get_it_into_a_message(server, code):
    server.always = status(code, f"Incorrect API key provided: {KEY}".encode())
    with pytest.raises((EndpointError, EndpointDenied)) as caught:
        chat(server).say(ASK)
    error = caught.value
    assert KEY not in f"{error!r} {error.__cause__!r} {error.args}" and "***" in str(error)


def test_a_key_under_any_name_is_hidden_from_then_on(server, monkeypatch):
    monkeypatch.setenv("PLAIN_NAME", "another-canary-77")
    chat(server, permissions=allowed(server.url, "PLAIN_NAME")).say(ASK)
    assert conceal("it is another-canary-77") == "it is ***"


@pytest.mark.parametrize("changes", [{"timeout_s": 0}, {"max_response_mb": 0}, {"name": "x"}])
def test_settings_that_cannot_be_are_refused(server, changes):
    with pytest.raises(ValueError, match=r"above 0|either `name`"):
        chat(server, **changes)


def test_a_wrong_certificate_or_none_is_not_accepted(server):
    url = server.url.replace("http:", "https:")
    with pytest.raises(EndpointError, match="SSL"):
        chat(server, url=url, permissions=allowed(url)).say(ASK)
