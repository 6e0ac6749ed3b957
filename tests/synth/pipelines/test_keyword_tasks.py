"""Tests tasks about keywords: which keywords are used, at which levels, and which answers are kept."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.pipelines.keyword_tasks import KeywordTasks
from nemo_vfm.synth.pipelines.text_bank import TextBank
from tests.support.told_models import ToldModel, ledger_of, ran


def with_answers(*answers: str) -> ToldModel:
    """Answers tasks so, one after the other, by a number in the task."""

    def tell(messages: Sequence[Json]) -> str | None:
        asked = str(messages[-1]["content"])
        if "numbered list" in asked:
            word = asked.split("<keyword>\n")[1].split("\n")[0]
            return f"1. Write {word}."
        if "Answer yes or no" in asked:
            return "No, that is a dish." if "bread" in asked else "**Yes**, it could."
        return next((answer for place, answer in enumerate(answers) if f"word {place}." in asked), answers[-1])

    return ToldModel(tell)


def bank(count: int, *more: str) -> str:
    return f"pipeline.bank.texts=[{', '.join([*(f'word {number}' for number in range(count)), *more])}]"


RIGHT = "Like this:\n\n```python\nprint(1)\n```\nIt prints:\n```\nan answer\n```"


def test_keywords_that_the_model_says_no_to_are_left_out_and_every_level_comes_early(tmp_path: Path) -> None:
    rows = ran(tmp_path, "python", "rows=6", bank(6, "bread"), generator=with_answers(RIGHT))
    assert [row["parents"]["keyword"] for row in rows] == [f"word {number}" for number in range(6)]
    levels = ["a beginner", "an intermediate programmer", "an advanced programmer"]
    assert [row["parents"]["level"] for row in rows] == 2 * levels
    assert [message["content"] for message in rows[0]["messages"]] == ["Write word 0.", RIGHT]
    assert rows[0]["verifier"] == "python: 1 of 1 blocks compile"


def test_an_answer_whose_code_does_not_compile_is_dropped_and_so_is_one_without_code(tmp_path: Path) -> None:
    broken = ["```python\nx = = 1\n```", "```py\nreturn 1\n```", "```python\nx = 1\n```\n```python\nfor\n```"]
    other = ["Use a loop.", "```bash\nls\n```", "```python\nx = 1"]
    generator = with_answers(*broken, *other, RIGHT)
    ran(tmp_path, "python", "rows=2", "min_yield=0.1", bank(8), generator=generator)
    found = ledger_of(tmp_path)["dropped"]
    assert found == {"code that does not compile": len(broken), "an answer without a block of code": len(other)}
    (tmp_path / "any").mkdir()
    ran(tmp_path / "any", "python", "rows=8", "pipeline.code=false", bank(8), generator=generator)


def test_a_model_that_says_yes_to_nothing_or_writes_no_list_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NemoVfmError, match="did not answer yes for any keyword"):
        ran(tmp_path, "python", "rows=1", generator=ToldModel(lambda messages: "Perhaps."))
    (tmp_path / "other").mkdir()
    with pytest.raises(NemoVfmError, match=r"none of the model's answers .* was a list"):
        ran(tmp_path / "other", "python", "rows=1", "pipeline.sort=false", generator=ToldModel(lambda messages: "No."))


def test_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    def late(messages: Sequence[Json]) -> None:
        time.sleep(random.random() / 300)

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        ran(tmp_path / name, "python", "rows=30", generator=ToldModel(late))
    one, other = ((tmp_path / name / "rows.jsonl").read_bytes() for name in ("one", "other"))
    assert one == other and len(set(one.splitlines())) == 30


def test_a_bank_is_read_from_a_file_a_text_a_line_and_each_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("heap\r\n\n stack \nheap\u2028map\nheap\n")
    made = TextBank(texts=["stack"], file=file)
    assert made.all() == ["stack", "heap", "heap\u2028map"] and made.max_texts() is None
    assert KeywordTasks(bank=made).max_rows() is None and KeywordTasks(bank=made, max_keywords=3).max_rows() == 6
    file.write_text("\n")
    for wrong in (file, tmp_path / "missing.txt", tmp_path):
        with pytest.raises(UserError, match=r"one (text )?per line"):
            TextBank(file=wrong).all()


@pytest.mark.parametrize("more", [{"tasks": 0}, {"levels": []}, {"max_keywords": 0}])
def test_settings_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        KeywordTasks(bank=TextBank(texts=["heap"]), **more)
    with pytest.raises(ValueError, match="at least one text"):
        TextBank(texts=["  "])
