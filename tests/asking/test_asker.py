"""Tests that every question ends once, as its own reply or with a reason, and that no answer is asked for again."""

import json
import math
import re
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from itertools import count, islice
from types import SimpleNamespace

import pytest

from nemo_vfm.asking import attempt
from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.attempt import Attempts, PendingQuestion, Retry
from nemo_vfm.asking.budget import Budget, BudgetExceeded, Price, TokenCost
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.pace import ConcurrencyLimit, Pace
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core import progress
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.endpoint import (
    EndpointBusy,
    EndpointDenied,
    EndpointError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnreachable,
)
from tests.support.chat_models import MadeChat, said


def questions(*texts, **more):
    return [Question([{"role": "user", "content": text}], index=number, **more) for number, text in enumerate(texts)]


def numbered(number):
    return questions(*(f"q{index}" for index in range(number)))


def asked(chat, those, tmp_path=None, **settings):
    journal = None if tmp_path is None else Journal(file=tmp_path / "answers.jsonl")
    return list(Asker(chat=chat, journal=journal, **settings).ask(those))


def texts(found):
    return {one.question.index: one.said.text for one in found if isinstance(one, Reply)}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("nemo_vfm.asking.pace._BACKOFF_S", 0.001)
    progress.forget()


def test_each_question_gets_its_own_answer_and_many_are_under_way_at_once():
    gate = threading.Barrier(8, timeout=60)

    def together(text):
        if int(text[1:]) < 8:
            gate.wait()  # nobody is answered before eight have been asked
        return said(f"{text}!")

    chat = MadeChat(always=together)
    found = asked(chat, numbered(200))
    assert texts(found) == {number: f"q{number}!" for number in range(200)} and len(found) == 200
    assert chat.max_at_once >= 8 and set(chat.asked.values()) == {1}


def test_replies_come_as_they_are_ready_and_the_slow_hold_up_nobody():
    release = threading.Event()

    def first_waits(text):
        if text == "q0":
            assert release.wait(60)
        return said(f"{text}!")

    replies = Asker(chat=MadeChat(always=first_waits)).ask(numbered(50))
    early = [reply.question.index for reply in islice(replies, 49)]
    assert 0 not in early
    release.set()
    assert [reply.question.index for reply in replies] == [0]


def test_questions_are_taken_only_as_places_get_free():
    taken = []

    def endless():
        for number in count():
            taken.append(number)
            yield Question([{"role": "user", "content": f"q{number}"}], index=number)

    replies = Asker(chat=MadeChat(), pace=Pace(start=4, most=4)).ask(endless())
    assert len(list(islice(replies, 10))) == 10 and len(taken) <= 15
    replies.close()


@pytest.mark.parametrize("fault", [EndpointFault("500"), EndpointTimeout("too long"), said(""), said(" \n")])
def test_a_fault_or_an_empty_answer_is_tried_again(fault, tmp_path):
    chat = MadeChat({"q1": [fault, fault, fault]})
    assert texts(asked(chat, numbered(3), tmp_path)) == {0: "q0!", 1: "q1!", 2: "q2!"} and chat.asked["q1"] == 4


@pytest.mark.parametrize(
    ("fault", "reason", "times"),
    [(EndpointFault("out of memory"), "4 attempts failed.*out of memory", 4), (said(""), "4 attempts.*nothing", 4),
     (EndpointError("too many pictures"), "too many pictures", 1), (DataError("torn file"), "torn file", 1),
     (said("", "blocked"), "declined", 1)],
)  # fmt: skip
def test_what_goes_on_failing_fails_with_its_reason_and_is_asked_again_by_the_next_run(fault, reason, times, tmp_path):
    chat = MadeChat({"q1": [fault] * 9})
    found = asked(chat, numbered(3), tmp_path)
    (failure,) = (one for one in found if isinstance(one, Failure))
    assert failure.question.index == 1 and chat.asked["q1"] == times and len(found) == 3
    assert re.search(reason, failure.reason)
    assert failure.blocked == (reason == "declined")
    chat = MadeChat()
    assert len(texts(asked(chat, numbered(3), tmp_path))) == 3 and dict(chat.asked) == {"q1": 1}


def test_refusals_do_not_count_as_tries():
    chat = MadeChat({"q1": [EndpointBusy("429", 0.0)] * 30})
    assert len(texts(asked(chat, numbered(3), tries=1))) == 3 and chat.asked["q1"] == 31


def test_nothing_but_refusals_ends_the_run_in_a_sentence_and_the_next_one_goes_on(tmp_path):
    chat = MadeChat({"q0": [said("first")]}, always=lambda text: refuse())

    def refuse():
        raise EndpointBusy("the service answered 429: slow down")

    with pytest.raises(UserError, match=r"only refusals.*patience_s.*slow down.*run again"):
        asked(chat, numbered(5), tmp_path, pace=Pace(patience_s=0.0, start=1))
    chat = MadeChat()
    assert texts(asked(chat, numbered(5), tmp_path))[0] == "first" and len(chat.asked) == 4


@pytest.mark.parametrize("before", [None, EndpointBusy("503"), said("an answer"), EndpointFault("500")])
def test_a_service_that_nobody_has_reached_ends_the_run_within_a_minute_and_one_that_restarts_gets_its_time(
    monkeypatch, before
):
    def refuse(text):
        raise EndpointUnreachable("the service at http://x cannot be reached: Connection refused")

    class Clock:
        now_s = 0.0
        monotonic = staticmethod(lambda: Clock.now_s)

    monkeypatch.setattr(attempt, "time", Clock)
    monkeypatch.setattr("nemo_vfm.asking.pace._BACKOFF_S", 0.25)
    limit, (question,) = Pace().new_limit(), questions("q")
    chat = MadeChat({"q": [] if before is None else [before]}, always=refuse)
    attempts = Attempts(chat, limit, None, Budget(), Price(million_in=0, million_out=0), 4, 600.0)
    outcome, asked_s = Retry(), []
    while not isinstance(outcome, UserError):
        pending = PendingQuestion(question, "key", due_s=Clock.now_s)
        Clock.now_s = max(pending.due_s, Clock.now_s + limit.wait_s(Clock.now_s))
        asked_s.append(Clock.now_s)
        outcome = attempts.make(pending, limit.send(Clock.now_s))
        Clock.now_s = max(Clock.now_s, pending.due_s)
    assert "http://x cannot be reached: Connection refused" in str(outcome)
    if before is None:
        assert 30 <= Clock.now_s < 40 and "Start the service" in str(outcome)
    else:
        assert 600 < Clock.now_s < 700 and "only refusals" in str(outcome)
    assert len(asked_s) < 30, "it is left in peace between two questions"


def test_a_line_of_progress_says_why_no_answer_comes_until_one_does():
    why = []

    def second_time(text):
        why.append(progress.wait_reason())
        if len(why) < 3:
            raise EndpointBusy("the service answered 503: loading", 0.0)
        return said("there")

    assert len(asked(MadeChat(always=second_time), numbered(2), pace=Pace(start=1, most=1))) == 2
    assert why[0] == "" and "503: loading" in why[1] and why[3:] == [""]
    with pytest.raises(UserError):
        asked(MadeChat(always=lambda _: second_time(why.clear())), numbered(1), pace=Pace(patience_s=0.0))
    assert progress.wait_reason() == "", "whoever comes next is not held up by it"


def test_a_pause_of_the_service_holds_up_no_answer_that_is_there(tmp_path, monkeypatch):
    asked(MadeChat(), numbered(3), tmp_path)
    asker = Asker(chat=MadeChat(), journal=Journal(file=tmp_path / "answers.jsonl"))
    monkeypatch.setattr(asker._limits[""], "_paused_until_s", math.inf)
    assert len(list(asker.ask(numbered(3)))) == 3 and list(asker.ask([])) == []


def test_a_pause_of_the_service_is_waited_for(monkeypatch):
    asker = Asker(chat=MadeChat())
    until_s = time.monotonic() + 0.2
    monkeypatch.setattr(asker._limits[""], "_paused_until_s", until_s)
    assert len(list(asker.ask(numbered(3)))) == 3 and time.monotonic() >= until_s


def test_what_concerns_all_is_raised_at_once():
    chat = MadeChat({"q0": [EndpointDenied("401: is the key correct?")]})
    with pytest.raises(EndpointDenied, match="key correct"):
        asked(chat, numbered(500), pace=Pace(most=2))
    assert len(chat.asked) < 500


def test_an_error_of_the_program_is_not_taken_for_a_failure_of_the_question():
    with pytest.raises(ZeroDivisionError):
        asked(MadeChat({"q3": [ZeroDivisionError()]}), numbered(5))


def test_what_was_answered_is_not_asked_again_and_only_what_changed_is(tmp_path):
    first = MadeChat()
    asked(first, numbered(20), tmp_path)
    second = MadeChat()
    found = asked(second, numbered(22), tmp_path)
    assert texts(found) == {number: f"q{number}!" for number in range(22)} and set(second.asked) == {"q20", "q21"}
    assert sum(one.recalled for one in found) == 20


@pytest.mark.parametrize("change", [{"sample": 1}, {"template": "v2"}])
def test_another_sample_or_template_is_another_question(change, tmp_path):
    asked(MadeChat(), numbered(2), tmp_path)
    chat = MadeChat()
    asked(chat, questions("q0", "q1", **change), tmp_path)
    assert len(chat.asked) == 2


def test_another_model_or_sampling_is_another_question_and_another_place_in_the_order_is_not(tmp_path):
    asked(MadeChat(), questions("a", "b"), tmp_path)
    again, other = MadeChat(), MadeChat(name="other")
    asked(again, questions("b", "a"), tmp_path)
    asked(other, questions("a", "b"), tmp_path)
    assert not again.asked and len(other.asked) == 2


def test_the_same_question_twice_ends_twice_in_one_way_also_where_it_fails():
    twice = [*questions("sly", "bad"), *questions("sly", "bad")]
    found = asked(MadeChat({"sly": [said("", "blocked")], "bad": [EndpointError("too long")]}), twice)
    ends = [(one.question.messages[0]["content"], one.reason, one.blocked) for one in found]
    assert Counter(ends) == {("sly", "the model declined", True): 2, ("bad", "too long", False): 2}


def test_an_asker_is_ready_where_each_of_its_models_is():
    class Absent(MadeChat):
        def ready(self):
            raise UserError(f"{self.name} is not there")

    Asker(chat=MadeChat(), others={"judge": MadeChat()}).ready()
    for chat, other in ((Absent(name="a"), MadeChat()), (MadeChat(), Absent(name="a"))):
        with pytest.raises(UserError, match="a is not there"):
            Asker(chat=chat, others={"judge": other}).ready()


def test_the_same_question_twice_is_asked_once_and_answered_twice(tmp_path):
    for folder in (None, tmp_path):
        chat = MadeChat()
        found = asked(chat, questions("a", "b", "a", "a"), folder)
        assert texts(found) == {0: "a!", 1: "b!", 2: "a!", 3: "a!"} and set(chat.asked.values()) == {1}
        assert {one.question.index: one.recalled for one in found} == {0: False, 1: False, 2: True, 3: True}
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2


def test_an_answer_of_before_is_the_one_that_was_given_whole_or_cut_off(tmp_path):
    first = asked(MadeChat({"q1": [said("half of", "truncated", 7, 3)]}), numbered(2), tmp_path)
    again = asked(MadeChat(), numbered(2), tmp_path)
    assert [one.recalled for one in again] == [True, True]
    assert {one.key: one.said for one in again} == {one.key: one.said for one in first}
    assert {one.said.ending for one in again} == {"success", "truncated"}


def test_an_answer_is_kept_before_it_is_read(tmp_path):
    replies = Asker(chat=MadeChat(), journal=Journal(file=tmp_path / "answers.jsonl")).ask(numbered(5))
    first = next(replies)
    assert first.key in (tmp_path / "answers.jsonl").read_text()
    replies.close()


def test_thoughts_are_kept_apart_also_those_that_older_journals_have_in_the_text(tmp_path):
    thinking = replace(said("b</think>c"), thought="a")
    (first,) = asked(MadeChat({"q0": [thinking]}), numbered(1), tmp_path)
    (again,) = asked(MadeChat(), numbered(1), tmp_path)
    assert again.recalled and again.said == first.said == thinking
    value = asdict(said("<think>a</think>\n\nb"))
    del value["thought"]
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(json.dumps({"key": first.key, "value": value}) + "\n")
    (old,) = asked(MadeChat(), numbered(1), tmp_path)
    assert old.recalled and (old.said.thought, old.said.text) == ("a", "b")


EMPTY = json.dumps(asdict(said("")))


@pytest.mark.parametrize("damage", [EMPTY, '{"text": ""}', '{"text": "x"}', "3", '{"text": 3, "ending": "success"}'])
def test_what_a_journal_holds_that_is_no_answer_is_asked_again(damage, tmp_path):
    (key,) = {reply.key for reply in asked(MadeChat(), numbered(1), tmp_path)}
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(f'{{"key": "{key}", "value": {damage}}}\n')
    chat = MadeChat()
    assert texts(asked(chat, numbered(1), tmp_path)) == {0: "q0!"} and chat.asked["q0"] == 1


def test_messages_may_be_made_when_it_is_their_turn(tmp_path):
    made = Counter()

    def make(name):
        made[name] += 1
        if name == "torn":
            raise DataError("no video")
        return [{"role": "user", "content": name}]

    late = [Question(lambda name=name: make(name), index, key=name) for index, name in enumerate(("a", "torn", "b"))]
    found = asked(MadeChat(), late, tmp_path, budget=Budget(tokens=10**6))
    assert texts(found) == {0: "a!", 2: "b!"} and len(found) == 3
    made.clear()
    asked(MadeChat(), late, tmp_path)
    assert made == {"torn": 1}
    with pytest.raises(ValueError, match="give the question a key"):
        Question(lambda: [])


def test_a_budget_stops_the_run_before_it_is_exceeded_and_more_of_it_goes_on(tmp_path):
    chat = MadeChat()
    asker = Asker(chat=chat, journal=Journal(file=tmp_path / "answers.jsonl"), budget=Budget(tokens=200))
    found = []
    with pytest.raises(BudgetExceeded, match=r"of 200 tokens.*run again"):
        found.extend(asker.ask(numbered(40)))
    assert asker.budget.spent.tokens == 15 * len(chat.asked) <= 200 and len(chat.asked) >= 9
    more = MadeChat()
    assert len(texts(asked(more, numbered(40), tmp_path, budget=Budget(tokens=2000)))) == 40
    assert not set(more.asked) & set(chat.asked)


def test_answers_of_before_count_for_the_budget(tmp_path):
    asked(MadeChat(), numbered(10), tmp_path)
    chat = MadeChat()
    with pytest.raises(BudgetExceeded, match="150 of 200 tokens"):
        asked(chat, numbered(11), tmp_path, budget=Budget(tokens=200))
    assert not chat.asked


def test_a_budget_waits_for_what_is_under_way_where_that_may_come_to_less():
    chat = MadeChat()
    chat.longest = 85
    assert len(texts(asked(chat, numbered(6), budget=Budget(tokens=175)))) == 6
    assert chat.max_at_once == 1, "100 tokens are reserved for each, and 15 used"


@pytest.mark.parametrize(
    "ends",
    [[EndpointBusy("429", 0.0)] * 5, [EndpointFault("500")], [EndpointError("too long")]],
    ids=["429", "500", "400"],
)
def test_what_was_not_answered_costs_nothing(ends):
    chat = MadeChat({"q0": ends})
    chat.longest, budget = 85, Budget(tokens=120)  # enough for one question at a time, and for two answers
    assert len(asked(chat, numbered(2), budget=budget)) == 2
    assert budget.spent.tokens == 15 * (1 if "too long" in str(ends) else 2)


def test_a_time_out_may_have_been_paid_for():
    chat, budget = MadeChat({"q0": [EndpointTimeout("2 s")]}), Budget(tokens=1000)
    asked(chat, numbered(1), budget=budget)
    assert budget.spent.tokens_out == 50 + 5


def test_answers_of_before_cost_what_they_cost_then_each_at_the_price_of_its_model(tmp_path):
    those = [Question([{"role": "user", "content": str(n)}], n, model="judge" if n % 3 else "") for n in range(9)]
    prices = {"made": Price(million_in=1e5, million_out=0.0), "judge": Price(million_in=0.0, million_out=1e6)}
    for times in (1, 0):
        models, budget = (MadeChat(), MadeChat(name="judge")), Budget(money=100.0, prices=prices)
        found = asked(models[0], those, tmp_path, others={"judge": models[1]}, budget=budget)
        assert budget.spent == TokenCost(90, 45, pytest.approx(3 * 1.0 + 6 * 5.0))
        assert [sum(model.asked.values()) for model in models] == [3 * times, 6 * times]
        assert {one.recalled for one in found} == {not times}


def test_askers_share_a_budget_each_at_the_price_of_its_model():
    prices = {"made": Price(million_in=1e5, million_out=0.0), "judge": Price(million_in=0.0, million_out=1e6)}
    budget = Budget(money=100.0, prices=prices)
    asked(MadeChat(), numbered(3), budget=budget)
    asked(MadeChat(name="judge"), numbered(4), budget=budget, pace=Pace(most=1))
    assert budget.spent == TokenCost(70, 35, pytest.approx(3 * 1.0 + 4 * 5.0))
    with pytest.raises(BudgetExceeded, match=r"in money"):
        asked(MadeChat(name="judge"), numbered(40), budget=budget)
    assert budget.spent.money <= 100.0


def test_money_without_the_price_of_a_model_is_refused_before_anything_is_asked():
    budget = Budget(money=5.0, prices={"other": Price(million_in=1.0, million_out=1.0)})
    with pytest.raises(ValueError, match=r"limits money to 5.*no price.*'made'.*it has other"):
        Asker(chat=MadeChat(), budget=budget)


def test_a_budget_for_a_model_whose_answers_have_no_limit_is_refused():
    class Endless:
        ready = say = identity = None

    with pytest.raises(ValueError, match=r"Endless has no model_name\(\)"):
        Asker(chat=Endless(), budget=Budget(tokens=10))


@pytest.mark.parametrize(
    "changes", [{"start": 0}, {"most": 0}, {"patience_s": -1.0}, {"max_wait_s": 0.0}], ids=lambda c: next(iter(c))
)
def test_a_pace_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match="expected at least"):
        Pace(**changes)


def test_those_who_ask_one_model_at_one_place_share_its_limit_and_others_do_not():
    class Placed(MadeChat):
        def place(self):
            return f"here {self.name}"

    pace, other_pace = Pace(), Pace(most=7)
    one, same, other = (Asker(chat=Placed(name=name), pace=pace) for name in ("shared", "shared", "alone"))
    assert one._limits[""] is same._limits[""] and one._limits[""] is not other._limits[""]
    assert Asker(chat=Placed(name="shared"), pace=other_pace)._limits[""] is not one._limits[""]


def test_each_setting_of_a_pace_makes_another_limit_which_keeps_it():
    class Placed(MadeChat):
        def place(self):
            return "a place whose settings change"

    limits = []
    for changes in ({}, {"start": 3}, {"most": 5}, {"max_wait_s": 5.0}):
        pace = Pace(**changes)
        limits.append(Asker(chat=Placed(), pace=pace)._limits[""])
        assert limits[-1].limit == min(pace.start, pace.most)
        assert limits[-1].record_refusal(limits[-1].send(0.0), 0.0, 1e9) == pace.max_wait_s
    assert len(set(map(id, limits))) == len(limits)


def test_a_service_rests_after_a_fault_and_a_model_in_this_process_does_not(monkeypatch):
    class Placed(MadeChat):
        def place(self):
            return "a place of its own"

    for kind, backoff_s in ((MadeChat, 3600.0), (Placed, 0.3)):
        monkeypatch.setattr("nemo_vfm.asking.attempt._BACKOFF_S", backoff_s)
        chat, began = kind(script={"q0": [EndpointFault("half an answer")]}), time.monotonic()
        assert texts(Asker(chat=chat).ask(numbered(1))) == {0: "q0!"} and chat.asked["q0"] == 2
    assert time.monotonic() - began >= 0.3


def test_the_rest_after_a_fault_doubles_and_a_time_out_needs_none(monkeypatch):
    class Placed(MadeChat):
        def place(self):
            return "a place that is asked by nobody else"

    monkeypatch.setattr("nemo_vfm.asking.attempt.time", SimpleNamespace(monotonic=lambda: 100.0))
    faults = [EndpointFault("500"), said(""), EndpointTimeout("too long"), EndpointFault("500")]
    asker = Asker(chat=Placed({"q0": faults}), tries=9)
    limit, waiting, rests = asker._limits[""], PendingQuestion(numbered(1)[0], "key"), []
    attempts = Attempts(asker.chat, limit, None, Budget(), Price(million_in=0, million_out=0), 9, 1.0)
    for _ in faults:
        assert isinstance(attempts.make(waiting, limit.send(100.0)), Retry)
        rests.append(waiting.due_s - 100.0)
    assert rests == [0.25, 0.5, 0.0, 2.0]


def test_what_was_reserved_for_a_question_that_may_not_be_sent_yet_is_given_back(monkeypatch):
    """Another asker of the same service took the place between the question and the sending."""
    send, refused = ConcurrencyLimit.send, []

    def often_late(limit, now_s):
        refused.append(len(refused) % 3 < 2)
        return None if refused[-1] else send(limit, now_s)

    monkeypatch.setattr(ConcurrencyLimit, "send", often_late)
    asker = Asker(chat=MadeChat(), budget=Budget(tokens=200))
    assert texts(list(asker.ask(numbered(5)))) == {number: f"q{number}!" for number in range(5)}
    assert sum(refused) >= 10 and asker.budget.spent.tokens == 75


def test_each_of_several_models_has_a_pace_of_its_own(tmp_path):
    """A slow judge with one place keeps nobody waiting who asks the other."""
    ended, slow = threading.Event(), []

    class Slow(MadeChat):
        def say(self, messages):
            slow.append(len(slow))
            assert ended.wait(20), "the other model was not asked meanwhile"
            return super().say(messages)

    asker = Asker(chat=MadeChat(), others={"judge": Slow(name="judge")}, pace=Pace(start=1, most=1),
                  journal=Journal(file=tmp_path / "answers.jsonl"))  # fmt: skip
    questions = [Question([{"role": "user", "content": str(n)}], n, model="judge" if n < 3 else "") for n in range(30)]
    found = []
    for reply in asker.ask(questions):
        found.append(reply)
        if len(found) == 27:
            assert all(not one.question.model for one in found) and len(slow) == 1
            ended.set()
    assert {one.question.index for one in found} == set(range(30)) and len(slow) == 3
    assert len({one.key for one in found}) == 30


def test_an_error_that_nobody_foresaw_ends_the_run_and_does_not_leave_it_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_vfm.asking.attempt.without_secrets", lambda said: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asked(MadeChat(), numbered(3), tmp_path)


@pytest.mark.parametrize("fault", [EndpointFault, EndpointError])
def test_a_key_is_in_no_reason_whoever_repeats_it(fault, monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", "canary-key-5531-x")
    (failure,) = asked(MadeChat({"q0": [fault("wrong key: canary-key-5531-x")]}), numbered(1), tries=1)
    assert "wrong key: ***" in failure.reason
