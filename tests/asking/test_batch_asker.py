"""Tests that questions go out and answers come in by OpenAI's batch files, each to its own question."""

import json
import re

import pytest

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.batch_asker import BatchAsker, BatchPending
from nemo_vfm.asking.budget import Budget, BudgetExceeded
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint
from nemo_vfm.core.network.permission import Permissions
from tests.support.chat_server import answer

KEY = "canary-key-5531-x"
URL = "https://batch.test/v1"


def chat(**permissions):
    allowed = Permissions(Permissions.of("batch.test").allowed, **permissions)
    return Chat(endpoint=Endpoint(url=URL, permissions=allowed), model="tiny", max_tokens=9)


def asker(folder, model=None, **limits):
    journal = Journal(file=folder / "answers.jsonl")
    return BatchAsker(chat=model or chat(), journal=journal, folder=folder / "batch", **limits)


def questions(*texts):
    return [Question([{"role": "user", "content": text}], index=number) for number, text in enumerate(texts)]


def pending(asker, *texts):
    found = []
    with pytest.raises(BatchPending) as caught:
        found.extend(asker.ask(questions(*texts)))
    return found, str(caught.value)


def requests(folder):
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()]
            for file in (folder / "batch").glob("requests-*.jsonl")}  # fmt: skip


def by_text(folder):
    lines = [line for group in requests(folder).values() for line in group]
    return {line["body"]["messages"][0]["content"]: line["custom_id"] for line in lines}


def result(key, text="fine", **changes):
    response = {"status_code": 200, "request_id": "r", "body": answer(text)}
    return {"id": "batch_req_1", "custom_id": key, "response": response, "error": None, **changes}


def deliver(folder, *entries, name="output.jsonl"):
    place = folder / "batch" / "results"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(
        "".join(entry if isinstance(entry, str) else json.dumps(entry) + "\n" for entry in entries)
    )


def test_questions_are_written_as_openai_documents_it_and_answers_reach_their_own(tmp_path):
    found, message = pending(asker(tmp_path), "a", "b", "c")
    ((name, lines),) = requests(tmp_path).items()
    assert not found and name in message and "results" in message
    expected = {"model": "tiny", "max_tokens": 9, "temperature": 0.0, "stream": False}
    assert all(line["method"] == "POST" and line["url"] == "/v1/chat/completions" for line in lines)
    assert all(expected.items() <= line["body"].items() for line in lines)
    keys = by_text(tmp_path)
    deliver(tmp_path, *(result(keys[text], f"{text}!") for text in "cab"))
    ends = list(asker(tmp_path).ask(questions("a", "b", "c")))
    assert {end.question.index: end.said.text for end in ends} == {0: "a!", 1: "b!", 2: "c!"}


def test_what_came_by_batch_is_known_to_an_asker_and_the_other_way_round(tmp_path):
    pending(asker(tmp_path), "a")
    deliver(tmp_path, result(by_text(tmp_path)["a"], "by batch"))
    list(asker(tmp_path).ask(questions("a")))
    direct = Asker(chat=chat(), journal=Journal(file=tmp_path / "answers.jsonl"))
    (reply,) = direct.ask(questions("a"))
    assert reply.said.text == "by batch" and reply.recalled


def test_only_what_is_new_is_written_and_the_rest_is_waited_for(tmp_path):
    pending(asker(tmp_path), "a", "b")
    before = set(requests(tmp_path))
    _, message = pending(asker(tmp_path), "a", "b")
    assert set(requests(tmp_path)) == before and message.startswith("2 questions of earlier files")
    pending(asker(tmp_path), "a", "b", "c")
    (new,) = set(requests(tmp_path)) - before
    assert [line["body"]["messages"][0]["content"] for line in requests(tmp_path)[new]] == ["c"]
    deliver(tmp_path, result(by_text(tmp_path)["a"]))
    found, message = pending(asker(tmp_path), "a", "b", "c")
    assert [end.question.index for end in found] == [0] and "2 questions" in message


def test_files_are_no_larger_than_the_service_takes(tmp_path):
    pending(asker(tmp_path, max_requests=3), *map(str, range(7)))
    assert sorted(len(lines) for lines in requests(tmp_path).values()) == [1, 3, 3]
    other = tmp_path / "other"
    pending(asker(other, max_mb=0.001), *("x" * 300 + str(number) for number in range(4)))
    sizes = [file.stat().st_size for file in (other / "batch").glob("requests-*.jsonl")]
    assert max(sizes) <= 1000 and len(by_text(other)) == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"response": {"status_code": 400, "body": {"error": {"message": f"too long, {KEY}"}}}}, "400.*too long"),
     ({"response": None, "error": {"code": "batch_expired"}}, "batch_expired"), ({"response": 3}, "says null"),
     ({"response": {"status_code": 200, "body": {"choices": []}}}, "no choices"),
     ({"response": {"status_code": 200, "body": answer(" ")}}, "returned nothing"),
     ({"response": {"status_code": 200, "body": answer("", choices=[
         {"finish_reason": "content_filter", "message": {"content": ""}}])}}, "declined")],
)  # fmt: skip
def test_a_result_that_is_no_answer_is_a_failure_and_never_kept(tmp_path, monkeypatch, changes, reason):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    pending(asker(tmp_path), "a")
    deliver(tmp_path, result(by_text(tmp_path)["a"], **changes))
    (end,) = asker(tmp_path).ask(questions("a"))
    assert isinstance(end, Failure) and re.search(reason, end.reason)
    assert end.blocked == (reason == "declined") and KEY not in end.reason
    (tmp_path / "batch" / "results" / "output.jsonl").unlink()
    pending(asker(tmp_path), "a")


def test_lines_that_are_no_results_and_answers_to_what_was_not_asked_do_no_harm(tmp_path):
    pending(asker(tmp_path), "a", "b")
    keys = by_text(tmp_path)
    deliver(tmp_path, "{half\n", "[]\n", "[" * 100_000 + "\n", {"custom_id": 3}, result("0" * 64, "stranger"),
            result(keys["a"], "first"), result(keys["a"], "second"), result(keys["b"]))  # fmt: skip
    ends = list(asker(tmp_path).ask(questions("a", "b")))
    assert [end.said.text for end in ends if isinstance(end, Reply)] == ["first", "fine"]


def test_the_key_is_in_no_file_even_if_an_answer_or_a_question_holds_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    withheld = chat(withheld=(("CANARY_API_KEY", KEY),))
    found, _ = pending(asker(tmp_path, withheld), "a", f"the key is {KEY}")
    assert [end.question.index for end in found] == [1] and "CANARY_API_KEY" in found[0].reason
    assert all(KEY not in file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    deliver(tmp_path, result(by_text(tmp_path)["a"], f"it is {KEY}"))
    (reply, _) = asker(tmp_path, withheld).ask(questions("a", f"the key is {KEY}"))
    assert reply.said.text == "it is ***" and KEY not in (tmp_path / "answers.jsonl").read_text()


@pytest.mark.parametrize("limits", [{"max_requests": 0}, {"max_mb": 0.0}])
def test_limits_that_cannot_be_are_refused(tmp_path, limits):
    with pytest.raises(ValueError, match="must be at least 1"):
        asker(tmp_path, **limits)


def test_a_budget_stops_the_writing_of_requests_and_counts_what_is_known_or_written(tmp_path):
    def limited(tokens):
        return asker(tmp_path, budget=Budget(tokens=tokens))

    with pytest.raises(BudgetExceeded, match="the budget is spent"):
        list(limited(55).ask(questions("one", "two", "three", "four")))
    assert len(by_text(tmp_path)) == 3, "16 or 17 tokens each, 9 of them for the answer"
    with pytest.raises(BudgetExceeded):
        list(limited(55).ask(questions("one", "two", "three", "four")))
    assert len(by_text(tmp_path)) == 3, "those that are under way are paid for"
    deliver(tmp_path, result(next(iter(by_text(tmp_path).values()))))
    found = []
    with pytest.raises(BatchPending):
        found.extend(limited(1000).ask(questions("one", "two", "three", "four")))
    assert len(found) == 1 and len(by_text(tmp_path)) == 4
