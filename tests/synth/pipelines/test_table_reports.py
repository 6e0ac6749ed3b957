"""Tests that an answer about a table is kept only where a program that reads the table finds the same value."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.program_model import ProgramModel
from nemo_vfm.synth.pipelines.table_reports import TableReports
from nemo_vfm.synth.programs.prompt_template import Prompt
from tests.support.told_models import ToldModel, ledger_of, ran

SMALL = ("pipeline.topics=1", "pipeline.tables=1", "pipeline.questions=2", "rows=2")
RIGHT = "```python\nimport csv\nprint(sum(int(row['n']) for row in csv.DictReader(TABLE.splitlines())))\n```"
TABLE = "name,n\n'''a\\,1\nb,2\nc,3\nd,4"


def told(table: str = TABLE, program: str = RIGHT, answer: str = "1+2+3+4 = 10\nAnswer: 10") -> ToldModel:
    """Says these, and asks two questions."""

    def tell(messages: Sequence[Json]) -> str | None:
        text = messages[-1]["content"]
        if "plain numbers without units" in text:
            return table
        if "must be computed from the table" in text:
            return "1. What is the sum of n?\n2. And what is it really?"
        if "Write a Python program" in text:
            return program
        return answer if "Answer:" in text else None

    return ToldModel(tell)


def ending(name: str, stdout: str = "10\n") -> ToldModel:
    """In the place of the model that runs programs."""
    end = {"ending": name, "reached_end": True, "stdout": stdout, "stderr": ""}
    return ToldModel(lambda messages: json.dumps(end), "python")


def test_rows_hold_table_question_and_answer_and_the_program_that_agreed(tmp_path: Path) -> None:
    rows = ran(
        tmp_path, "documents", "rows=12", "pipeline.topics=3", "min_yield=0.3", python=ProgramModel(strict=False)
    )
    assert len({row["parents"]["template"] for row in rows}) > 1 and len({row["parents"]["topic"] for row in rows}) > 1
    for row in rows:
        user, answer = (message["content"] for message in row["messages"])
        assert re.search(r"<table>\nnumber,name,count,cost\n1,", user) and row["parents"]["question"] in user
        assert "TABLE" in row["program"] and row["verifier"].startswith("python/1") and "Answer: " in answer
        assert [asked["model"] for asked in row["asked"]].count("python") == 1 and "python" in row["models"]


def test_a_program_is_run_on_the_table_as_it_stands_and_must_print_the_answer(tmp_path: Path) -> None:
    python = ProgramModel(strict=False)
    for name, answer in (("same", "Answer: 10"), ("other", "Answer: 11")):
        (tmp_path / name).mkdir()
        if name == "same":
            rows = ran(tmp_path / name, "documents", *SMALL, generator=told(answer=answer), python=python)
            assert len(rows) == 2 and TABLE in rows[0]["messages"][0]["content"]
        else:
            with pytest.raises(NemoVfmError, match="Most often: the program prints another answer"):
                ran(tmp_path / name, "documents", *SMALL, generator=told(answer=answer), python=python)


@pytest.mark.parametrize(("more", "python", "rule"), [
    ({"table": "I have none."}, ending, "no table of 4 to 40 rows with numbers"),
    ({"answer": "I do not know."}, ending, "the answer does not end with a value"),
    ({"program": "I would sum it up."}, ending, "no program that compiles"),
    ({"program": "```python\nprint(sum(\n```"}, ending, "no program that compiles"),
    ({"program": "```python\nprint(10)\n```"}, ending, "the program does not read the table"),
    ({"program": "```python\nTABLE = '10'\nprint(TABLE)\n```"}, ending, "the program does not read the table"),
    ({}, lambda name: ending("timeout"), "the program ended with timeout"),
    ({}, lambda name: ending("ok", " \n"), "the program printed nothing"),
    ({}, lambda name: ending("ok", "9.99\n"), "the program prints another answer"),
    ({}, lambda name: ending("ok", "ten\n"), "the program prints another answer"),
])  # fmt: skip
def test_what_cannot_be_confirmed_is_dropped_by_its_rule(
    tmp_path: Path, more: dict[str, Any], python: Callable[[str], ToldModel], rule: str
) -> None:
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        ran(tmp_path, "documents", *SMALL, generator=told(**more), python=python("ok"))
    assert ledger_of(tmp_path)["dropped"] == {rule: 2}


def test_the_seed_draws_the_templates_and_one_table_serves_all_its_questions(tmp_path: Path) -> None:
    generator = told()
    rows = ran(tmp_path, "documents", *SMALL, generator=generator, python=ending("ok"))
    assert [row["parents"]["question"] for row in rows] == ["What is the sum of n?", "And what is it really?"]
    texts = [asked[-1]["content"] for asked in generator.asked]
    assert sum("plain numbers without units" in text for text in texts) == 1
    assert sum("must be computed from the table" in text for text in texts) == 1


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"template odd must have the places .table. and .question.*; it has question"):
        TableReports(templates={"odd": Prompt(text="{question}")})
    with pytest.raises(ValueError, match=r"table_rows \[5, 4\]"):
        TableReports(templates={"one": Prompt(text="{table}{question}")}, table_rows=(5, 4))
    assert TableReports(templates={"one": Prompt(text="{table}{question}")}, topics=2).max_rows() == 16
