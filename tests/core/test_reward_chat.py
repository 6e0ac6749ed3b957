"""Tests that a reward model's endpoint is asked as Nemotron's, and that an answer without its scores is an error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_vfm.core.network.endpoint import Endpoint, EndpointBusy, EndpointError, EndpointFault
from nemo_vfm.core.network.reward_chat import RewardChat
from tests.support.chat_server import ChatServer, allowed, answer, chat_server, status

MESSAGES = [{"role": "user", "content": "What should I see?"}, {"role": "assistant", "content": "The tower."}]


def listed(*pairs: tuple[Any, Any], **changes: Any) -> dict[str, Any]:
    """An answer of Nemotron's endpoint, whose message is a list of one."""
    content = [{"token": token, "bytes": None, "logprob": number, "top_logprobs": []} for token, number in pairs]
    message = [{"role": "assistant", "content": "helpfulness:9"}]
    choice = {"finish_reason": "length", "index": 0, "logprobs": {"content": content}, "message": message}
    return answer("", choices=[choice], **changes)


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with chat_server() as found:
        yield found


def asked(server: ChatServer, reply: dict[str, Any]) -> str:
    server.reply = lambda question: reply
    return chat(server).say(MESSAGES).text


def chat(server: ChatServer, **more: Any) -> RewardChat:
    return RewardChat(endpoint=Endpoint(url=server.url, permissions=allowed(server.url)), model="judge", **more)


def test_the_scores_are_json_in_alphabetical_order(server: ChatServer) -> None:
    server.reply = lambda question: listed(("helpfulness", 1.6171875), ("correctness", 2), ("coherence", -0.5))
    said = chat(server).say(MESSAGES)
    assert said.text == '{"coherence": -0.5, "correctness": 2.0, "helpfulness": 1.6171875}'
    assert (said.ending, said.model, said.revision, said.tokens_in) == ("success", "tiny-vlm", "fp_1", 11)
    assert server.questions[-1] == {"model": "judge", "messages": MESSAGES, "stream": False}
    assert server.paths[-1] == "/v1/chat/completions"


def test_scores_in_the_message_alone_are_read_too(server: ChatServer) -> None:
    assert json.loads(asked(server, answer("helpfulness:1.5, verbosity:-2e-1"))) == {
        "helpfulness": 1.5,
        "verbosity": -0.2,
    }


@pytest.mark.parametrize("reply", [listed(), answer("  ")], ids=["none listed", "blank"])
def test_no_score_is_a_fault_that_may_be_tried_again(server: ChatServer, reply: Any) -> None:
    with pytest.raises(EndpointFault, match="returned no scores"):
        asked(server, reply)


@pytest.mark.parametrize(
    "reply",
    [answer("A fine answer: it is helpful."), answer("helpfulness:4,"), answer("4"), answer("helpfulness:nan"), [],
     {}, answer("a:1,a:2"), listed(("a", 1), ("a", 1)), listed(("a", None)), listed(("a", True)), listed(("a", "1")),
     listed(("", 1)), listed((None, 1)), listed(("a", float("inf"))), listed(("a", 10**400)),
     listed(("a", 1), usage=[1]),
     {"choices": [{"logprobs": [], "message": None}]}],
    ids=range(17),
)  # fmt: skip
def test_another_schema_is_an_error_and_no_score(server: ChatServer, reply: Any) -> None:
    with pytest.raises(EndpointError, match="no scores of a reward model") as error:
        asked(server, reply)
    assert not isinstance(error.value, EndpointFault)


def test_refusals_and_mixed_up_answers_are_those_of_chat(server: ChatServer) -> None:
    server.faults = [status(429, Retry_After="7")]
    with pytest.raises(EndpointBusy) as busy:
        chat(server).say(MESSAGES)
    assert busy.value.retry_after_s == 7
    with pytest.raises(EndpointError, match="another request's id"):
        asked(server, listed(("a", 1), id="chatcmpl-nemo-vfm-other"))
    server.reply = lambda question: listed(("a", 1))
    with pytest.raises(EndpointError, match="lacks its request's id"):
        chat(server, require_echo=True).say(MESSAGES)


def test_it_says_who_is_asked(server: ChatServer) -> None:
    found = chat(server)
    assert (found.place(), found.model_name(), found.identity()) == (
        f"{server.url} judge",
        "judge",
        ["reward/1", "judge"],
    )
    with pytest.raises(ValueError, match="name at the endpoint"):
        RewardChat(endpoint=found.endpoint, model="")
