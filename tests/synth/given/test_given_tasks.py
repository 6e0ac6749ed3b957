"""Tests what tasks are read from given rows, and that a column that is missing or holds something else says where."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.given.given_tasks import GivenTasks
from nemo_vfm.synth.given.row_file import RowFile
from nemo_vfm.synth.given.row_source import GivenRow, ListedRows, is_flagged
from nemo_vfm.synth.programs.row_program import RowTask
from tests.support.told_models import ran

TALK = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"}]  # fmt: skip


class Rows:
    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows

    def given_rows(self) -> Any:
        return (GivenRow(f"x line {number}", row) for number, row in enumerate(self.rows, 1))


def tasks(*rows: dict[str, Any], **more: Any) -> list[RowTask]:
    return list(GivenTasks(rows=Rows(*rows), **more).each())


def test_a_prompt_is_a_task_with_its_truth_licence_and_flag() -> None:
    row = {"prompt": "2+2", "gold": 4, "terms": "CC0", "bad": [{"flagged": True}], "id": 7}
    (task,) = tasks(row, column="prompt", answer="gold", licence="terms", flag="bad")
    assert task == RowTask([{"role": "user", "content": "2+2"}], {"given": "x line 1", "given_id": 7}, "4", "CC0", True)


def test_of_a_conversation_the_last_answer_is_left_out_and_of_turns_as_many_as_wanted() -> None:
    (whole,) = tasks({"messages": TALK, "licence": "MIT", "parents": {"topic": "counting"}})
    assert whole.messages == TALK[:3] and whole.licence == "MIT" and whole.parents["topic"] == "counting"
    assert tasks({"messages": TALK}, turns=1)[0].messages == TALK[:1]
    assert tasks({"messages": TALK[:3]}, turns=9)[0].messages == TALK[:3]


def test_rows_of_a_run_are_tasks_of_another_and_name_where_they_are_from(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    rows = ran(tmp_path / "run", "open_qa", "rows=3")
    for name in ("rows.jsonl", "rows.parquet"):
        found = list(GivenTasks(rows=RowFile(path=tmp_path / "run" / name)).each())
        assert [task.messages for task in found] == [row["messages"][:1] for row in rows]
        assert [task.parents["given_id"] for task in found] == [row["id"] for row in rows]
    first = next(iter(GivenTasks(rows=RowFile(path=tmp_path / "run/rows.jsonl")).each()))
    row = {"messages": "a", "id": "0-7", "parents": {"given": "older", "given_id": "9", "topic": "bees"}}
    assert tasks(row)[0].parents == {"topic": "bees", "given": "x line 1", "given_id": "0-7"}
    assert first.parents["given"] == "rows.jsonl line 1" and first.parents["topic"] == rows[0]["parents"]["topic"]


@pytest.mark.parametrize(("row", "more", "said"), [
    ({"prompt": "a"}, {}, "x line 1 has no column messages; it has prompt"),
    ({"messages": 3}, {}, "column messages of x line 1 holds a number, expected a text or a list of messages"),
    ({"messages": []}, {}, "holds an empty list"),
    ({"messages": "  "}, {}, "holds an empty text"),
    ({"messages": [{"role": "user"}]}, {}, "message 1 in column messages of x line 1 has nothing as its content"),
    ({"messages": [TALK[0], {"role": "bot", "content": "a"}]}, {}, "message 2 .* has the role 'bot'"),
    ({"messages": [*TALK[:1], {"role": "tool", "content": "a"}]}, {}, "ends with a turn of tool"),
    ({"messages": [TALK[1]]}, {}, "ends with a turn of nobody"),
    ({"messages": "a"}, {"answer": "gold"}, "has no column gold"),
    ({"messages": "a", "gold": [1]}, {"answer": "gold"}, "column gold of x line 1 holds a list, expected a text or a"),
    ({"messages": "a", "gold": True}, {"answer": "gold"}, "holds a truth value"),
    ({"messages": "a"}, {"flag": "bad"}, "has no column bad"),
    ({"messages": "a", "bad": "no"}, {"flag": "bad"}, "column bad of x line 1 holds a text, expected true or false"),
    ({"messages": "a", "terms": 1}, {"licence": "terms"}, "column terms of x line 1 holds a number, expected a text"),
])  # fmt: skip
def test_a_column_that_is_missing_or_of_a_wrong_type_says_where(row: Any, more: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        tasks(row, **more)


def test_a_row_that_is_no_task_ends_the_run_with_its_place(tmp_path: Path) -> None:
    given_rows = [*({"messages": f"Ask {number}."} for number in range(5)), {"messages": None}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given_rows))
    rows_at = f"{{_target_: nemo_vfm.synth.given.row_file.RowFile, path: {path}}}"
    given = f"pipeline.tasks={{_target_: nemo_vfm.synth.given.given_tasks.GivenTasks, rows: {rows_at}}}"
    with pytest.raises(UserError, match=r"column messages of x.jsonl line 6 holds nothing"):
        ran(tmp_path, "ratings", given, "rows=50")


def test_verdicts_of_moderations_are_read_in_their_usual_forms() -> None:
    for value, flagged in [(True, True), (0, False), (None, False), ([], False), (["violence"], True), (1, True),
                           ({"flagged": False}, False), ([{"flagged": False}, {"flagged": True}], True)]:  # fmt: skip
        assert is_flagged(GivenRow("x", {"bad": value}), "bad") is flagged, value
    for value in ("yes", 2, [1], {"violence": 0.4}):
        with pytest.raises(UserError, match="column bad of x holds"):
            is_flagged(GivenRow("x", {"bad": value}), "bad")


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="turns 0 must be at least 1"):
        GivenTasks(rows=Rows(), turns=0)
    with pytest.raises(ValueError, match="rows is empty"):
        ListedRows(rows=[])
