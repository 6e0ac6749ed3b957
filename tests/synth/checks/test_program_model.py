"""Tests that programs are run as questions are asked."""

import sys
import threading
import time
from pathlib import Path

import pytest

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.budget import Budget
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.checks import program_model
from nemo_vfm.synth.checks.limited_child import Limits, ProgramResult, Protections, protections
from nemo_vfm.synth.checks.program_model import ProgramEnd, ProgramModel, end_in

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are run on Linux alone")


@pytest.fixture
def strict() -> None:
    here = protections()
    if not (here.files and here.network and here.processes):
        pytest.skip(f"this machine cannot limit a program: {here}")


def asked(source: str) -> Question:
    return Question([{"role": "user", "content": source}])


@pytest.mark.usefixtures("strict")
def test_a_program_is_a_question_and_is_not_run_again_once_its_end_is_known(tmp_path: Path) -> None:
    sources = ["print(20 + 22)", "import sys\nsys.exit(0)", "x = [1]\nassert x == [2], x"]
    made = Asker(chat=ProgramModel(), journal=Journal(file=tmp_path / "answers.jsonl"), tries=1)
    made.ready()
    for recalled in (False, True):
        ends = {end.question.messages[0]["content"]: end for end in made.ask(map(asked, sources))}
        assert all(isinstance(end, Reply) and end.recalled is recalled for end in ends.values())
        found = [end_in(ends[source].said.text) for source in sources]
        assert [end.passed for end in found] == [True, False, False]
        assert found[0] == ProgramEnd("ok", True, "42\n", "") and (found[1].ending, found[1].reached_end) == (
            "ok",
            False,
        )
        assert found[2].ending == "error" and found[2].stderr.endswith("AssertionError: [1]\n")


@pytest.mark.usefixtures("strict")
def test_of_what_a_program_complains_the_end_is_kept() -> None:
    said = ProgramModel(limits=Limits(wall_s=9.0)).say(
        asked("import sys\nsys.stderr.write('a' * 9000 + 'b')").build_messages()
    )
    assert end_in(said.text).stderr == "a" * 1499 + "b"


@pytest.mark.parametrize(("at_once", "places"), [(2, 2), (None, 1)], ids=["given", "cores that it may use"])
def test_no_more_programs_run_at_once_than_there_are_places(monkeypatch: pytest.MonkeyPatch, at_once, places) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def slow(source: str, **_: object) -> ProgramResult:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return ProgramResult("ok", source, "", 0.0, True)

    monkeypatch.setattr(program_model, "run_python", slow)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    ends = list(Asker(chat=ProgramModel(at_once=at_once)).ask(asked(str(number)) for number in range(12)))
    assert len(ends) == 12 and most == places


def test_a_budget_needs_no_price_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_model, "run_python", lambda source, **_: ProgramResult("ok", source, "", 0.0, True))
    made = Asker(chat=ProgramModel(), budget=Budget(tokens=1, money=0.0))
    assert all(isinstance(end, Reply) for end in made.ask(asked(str(number)) for number in range(5)))
    assert made.budget.spent.tokens == 0


def test_what_is_refused_is_a_failure_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ProgramResult("refused", "", "files cannot be limited", 0.0)
    monkeypatch.setattr(program_model, "run_python", lambda source, **_: refused)
    (end,) = Asker(chat=ProgramModel(), tries=1).ask([asked("1")])
    assert isinstance(end, Failure) and "files cannot be limited" in end.reason
    monkeypatch.setattr(program_model, "protections", lambda: Protections(False, True, True, False, ("rlimits",)))
    with pytest.raises(UserError, match="this machine has: rlimits"):
        ProgramModel().ready()
    ProgramModel(strict=False).ready()
    with pytest.raises(ValueError, match="must be at least 1"):
        ProgramModel(at_once=0)
