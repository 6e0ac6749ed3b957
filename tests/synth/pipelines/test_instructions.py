"""Tests that answers which obey their instructions are kept, in three forms, and others dropped by kind."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.instruction_kinds import KINDS, draw, instruction_of
from nemo_vfm.synth.embedded import made_obedience
from nemo_vfm.synth.embedded.word_draw import WordDraw
from nemo_vfm.synth.pipelines.instructions import Instructions
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from nemo_vfm.synth.programs.row_program import DroppedRow, RowFailed, RowTask, say
from tests.support.told_models import ToldModel, ledger_of, ran
from tests.synth.programs.test_synthesize import Shuffled


def holds(row: dict[str, Any], answer: str) -> bool:
    return all(instruction_of(one).holds(answer) for one in row["instructions"])


def test_rows_in_three_forms_hold_answers_that_obey_and_say_so(tmp_path: Path) -> None:
    rows = ran(tmp_path, "instructions", "rows=18", "pipeline.most=3")
    assert {row["parents"]["form"] for row in rows} == {"one_turn", "all_turns", "revise"}
    for row in rows:
        form, texts = row["parents"]["form"], [one["content"] for one in row["messages"]]
        assert [one["role"] for one in row["messages"]] == ["user", "assistant"] * {"one_turn": 1, "revise": 2}.get(
            form, 3
        )
        told = texts[2 if form == "revise" else 0]
        assert all(one["text"] in told for one in row["instructions"]) and 1 <= len(row["instructions"]) <= 3
        answers = {"one_turn": texts[1:], "all_turns": texts[1::2], "revise": texts[3:]}[form]
        assert all(holds(row, answer) for answer in answers)
        if form == "revise":
            assert texts[0] == row["parents"]["task"] and not holds(row, texts[1])
        else:
            assert texts[0].startswith(f"{row['parents']['task']}\n\n") and len({*texts[::2]}) == len(texts[::2])
        kinds = [one["kind"] for one in row["instructions"]]
        assert row["verifier"] == f"instructions/2: {len(answers)} of {len(answers)} answers obey: {', '.join(kinds)}"
        assert form == "one_turn" or "repeat_prompt" not in kinds
    assert ledger_of(tmp_path)["kept"] == 18
    assert len({str(row["instructions"]) for row in rows}) >= 15, "each task has others"


@pytest.mark.parametrize("form", ["one_turn", "all_turns", "revise"])
def test_answers_that_break_an_instruction_are_dropped_by_its_kind(tmp_path: Path, form: str) -> None:
    def tell(messages: Sequence[Json]) -> str | None:
        last = str(messages[-1]["content"])
        if "list of" in last or "take back what" in last:
            return None
        done = len(messages) > 1 or form == "one_turn"  # the first answer of a conversation obeys
        return "Here, a comma." if done or form == "revise" else "No comma here."

    model = ToldModel(tell)
    with pytest.raises(NemoVfmError, match="Most often: not obeyed: no_commas"):
        ran(
            tmp_path,
            "instructions",
            "rows=2",
            f"pipeline.forms=[{form}]",
            "pipeline.kinds=[no_commas]",
            "pipeline.attempts=2",
            "pipeline.tasks.topics=1",
            generator=model,
        )
    told = ledger_of(tmp_path)
    assert told["dropped"] == {"not obeyed: no_commas": told["in"]} and told["failed"] == {}
    asked = [
        messages
        for messages in model.asked
        if len(messages) == {"one_turn": 1}.get(form, 3) and "list of" not in messages[-1]["content"]
    ]
    assert len(asked) == 2 * told["in"], "each is asked for twice"


def test_an_answer_of_the_second_attempt_is_kept() -> None:
    pipeline = Instructions(tasks=TopicTasks(), attempts=2, kinds=["no_commas"], most=1)
    program = pipeline.row(RowTask([say("user", "Why?")], licence="CC0"), "one_turn")
    (first,) = next(program)
    (again,) = program.send(["Well, no."])
    assert (first.sample, again.sample) == (0, 1) and first.before == again.before
    with pytest.raises(StopIteration) as stop:
        program.send([" Well: yes. "])
    assert stop.value.value.messages[-1] == {"role": "assistant", "content": "Well: yes."}
    assert stop.value.value.licence == "CC0"


def test_a_first_answer_that_obeys_already_is_nothing_to_revise() -> None:
    pipeline = Instructions(tasks=TopicTasks(), kinds=["no_commas"])
    program = pipeline.row(RowTask([say("user", "Why?")]), "revise")
    next(program)
    with pytest.raises(StopIteration) as stop:
        program.send(["No."])
    assert stop.value.value == DroppedRow("the first answer obeys what was drawn")


def test_a_user_who_says_the_same_again_drops_the_row() -> None:
    pipeline = Instructions(tasks=TopicTasks(), kinds=["no_commas"])
    program = pipeline.row(RowTask([say("user", "Why?")]), "all_turns")
    next(program)
    (ask,) = program.send(["It is so."])
    assert ask.prompt == "next_turn" and "[assistant]\nIt is so." in ask.values["transcript"]
    with pytest.raises(StopIteration) as stop:
        program.send(["it is SO"])
    assert stop.value.value == DroppedRow("a turn of the user repeats an earlier one")


def test_a_task_that_no_instruction_fits_fails_and_a_conversation_keeps_its_turns() -> None:
    pipeline = Instructions(tasks=TopicTasks(), kinds=["repeat_prompt"], forms=["one_turn"])
    with pytest.raises(RowFailed, match="no instruction of the kinds fits"):
        next(pipeline.row(RowTask([say("user", "Two\nlines")]), "one_turn"))
    turns = [say("user", "u"), say("assistant", "a"), say("user", "Why?")]
    (ask,) = next(pipeline.row(RowTask(turns), "one_turn"))
    assert ask.before[:2] == tuple(turns[:2]) and ask.before[2]["content"].startswith("Why?\n\n")


def test_what_suits_one_turn_alone_is_not_asked_of_several() -> None:
    pipeline = Instructions(tasks=TopicTasks(), kinds=["no_commas", "repeat_prompt"], most=2)
    first = [next(pipeline.row(RowTask([say("user", f"Why {n}?")]), "all_turns")) for n in range(8)]
    told = [ask.before[0]["content"] for (ask,) in first]
    assert all("comma" in text and "request above" not in text for text in told)


def test_the_recipe_makes_the_same_fifty_rows_whatever_the_order_of_answers(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        found.append(ran(tmp_path / name, "instructions", generator=Shuffled(error_rate=0.05)))
    assert len(found[0]) == 50 and found[0] == found[1] and ledger_of(tmp_path / "one") == ledger_of(tmp_path / "other")


def test_the_embedded_responder_obeys_every_kind_max_often(monkeypatch: pytest.MonkeyPatch) -> None:
    form, broken, kinds = made_obedience.FORMS[-1], 0, set()
    monkeypatch.setattr(made_obedience, "_DISOBEYED", 0)
    for seed in range(300):
        drawn = draw(random.Random(seed), 1 + seed % 3, prompt="Say why the tide turns.")
        text = "Say why the tide turns.\n\n" + " ".join(one.text for one in drawn)
        match = form.pattern.search(text)
        answer = match and form.answer(match, [say("user", text)], WordDraw(text))
        broken += not all(one.holds(answer or "") for one in drawn)
        kinds |= {one.kind for one in drawn}
    assert kinds == set(KINDS) and broken <= 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"forms": []}, "must name some of one_turn"),
        ({"forms": ["two"]}, "must name some of"),
        ({"most": 0}, "must be at least 1"),
        ({"turns": 1}, "at least 2"),
        ({"kinds": ["rhyme"]}, "must name some of min_words"),
        ({"kinds": ["choice"]}, "suit only the form one_turn"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Instructions(tasks=TopicTasks(), **settings)
