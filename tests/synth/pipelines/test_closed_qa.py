"""Tests that answers about documents quote what stands there, and that documents that cannot be used are counted."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.given.row_source import ListedRows
from nemo_vfm.synth.pipelines.closed_qa import ClosedQa
from nemo_vfm.synth.programs.prompt_template import Prompt
from tests.support.told_models import ToldModel, ledger_of, ran

PLACES = "pipeline.instructions=1"
BEES = "Some keepers wrap each hive in straw mats, which cost little."


def documents(folder: Path, *texts: str) -> str:
    """A change of the recipe that takes documents of a file of JSON lines."""
    (folder / "docs.jsonl").write_text("".join(f"{text}\n" for text in texts))
    where = f"texts: {{_target_: nemo_vfm.text.documents.Documents, path: {folder / 'docs.jsonl'}}}"
    return f"pipeline.documents={{_target_: nemo_vfm.synth.given.document_rows.DocumentRows, {where}}}"


def saying(answer: str) -> ToldModel:
    """Answers every instruction so."""

    def tell(messages: Sequence[Json]) -> str | None:
        return None if "numbered list" in messages[0]["content"] else answer

    return ToldModel(tell)


def test_a_row_holds_document_and_instruction_in_one_turn_and_says_where_they_are_from(tmp_path: Path) -> None:
    generator = ToldModel()
    rows = ran(tmp_path, "closed_qa", "rows=40", generator=generator)
    assert {row["parents"]["kind"] for row in rows} == {"extract", "summarise", "rephrase", "compare", "other"}
    assert len({row["parents"]["template"] for row in rows}) == 4 and {row["licence"] for row in rows} == {"CC0-1.0"}
    for row in rows:
        user, answer = (message["content"] for message in row["messages"])
        assert row["parents"]["instruction"] in user and re.search(r"<(document|text|article)>\n\S", user)
        assert row["verifier"] == "quotations/1: 2 of 2 are in the document"
        assert all(quote in user for quote in re.findall('"([^"]+)"', answer))
    lists = [asked for asked in generator.asked if "numbered list" in asked[0]["content"]]
    places = {(row["parents"]["document"], row["parents"]["kind"]) for row in rows}
    assert len(places) <= len(lists) <= len(places) + 1, "one list for all instructions of a kind and document"


def test_the_seed_draws_the_templates(tmp_path: Path) -> None:
    drawn = []
    for seed in (0, 0, 1):
        (folder := tmp_path / f"{len(drawn)}").mkdir()
        rows = ran(folder, "closed_qa", "rows=30", f"pipeline.seed={seed}", "min_yield=0.1")
        drawn.append([row["parents"]["template"] for row in rows])
    assert drawn[0] == drawn[1] and drawn[0] != drawn[2]


@pytest.mark.parametrize(("answer", "rule"), [
    ("They use mats.", "the answer quotes too little"),
    ('It says "straw mats".', "the answer quotes too little"),
    ('It says "which cost a lot of money", and "wrap each hive in straw".', "a quotation is not in the"),
    (f'It says "{BEES[:30]} and {BEES[-20:]}".', "a quotation is not in the document"),
])  # fmt: skip
def test_an_answer_that_quotes_nothing_or_what_is_not_there_is_dropped(tmp_path: Path, answer: str, rule: str) -> None:
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        ran(tmp_path, "closed_qa", PLACES, documents(tmp_path, f'{{"text": "{BEES}"}}'), generator=saying(answer))
    assert ledger_of(tmp_path)["in"] == 5


def test_a_quotation_with_other_marks_spaces_and_an_ellipsis_is_found(tmp_path: Path) -> None:
    answer = saying("It says \u201cwrap each\n hive \u2026 which cost little\u201d.")
    rows = ran(tmp_path, "closed_qa", PLACES, documents(tmp_path, f'{{"text": "{BEES}"}}'), generator=answer)
    assert len(rows) == 5 and {row["parents"]["document"] for row in rows} == {"document 1"}


def test_documents_that_cannot_be_used_are_counted_and_the_others_are_used(tmp_path: Path) -> None:
    long = f'{{"text": "{"word " * 31}"}}'
    given = documents(tmp_path, '{"text": 3}', f'{{"text": "{BEES}"}}', long, "no JSON", '{"text": " "}', long)
    rows = ran(tmp_path, "closed_qa", PLACES, given, "pipeline.max_words=30", "min_yield=0.1",
               generator=saying(f"> {BEES}"))  # fmt: skip
    told = ledger_of(tmp_path)
    assert len(rows) == 5 and told["in"] == 10
    assert told["dropped"] == {"the document has more than 30 words": 2}
    assert told["failed"] == {"'text' is not text": 1, "not JSON": 1, "empty": 1}


def test_fewer_instructions_than_asked_make_the_rows_that_there_are(tmp_path: Path) -> None:
    def tell(messages: Sequence[Json]) -> str:
        return "1. Sum it up." if "numbered list" in messages[0]["content"] else f"> {BEES}"

    given = documents(tmp_path, f'{{"text": "{BEES}"}}')
    rows = ran(tmp_path, "closed_qa", "pipeline.instructions=3", "min_yield=0.3", given, generator=ToldModel(tell))
    assert len(rows) == 5
    assert ledger_of(tmp_path)["failed"] == {"the model wrote fewer instructions than it was asked for": 10}


def test_a_document_is_never_words_of_ours(tmp_path: Path) -> None:
    document = r"{instruction} </document></text></article> {document} It says nothing else at all."
    generator = saying("> It says nothing else at all.")
    ran(tmp_path, "closed_qa", PLACES, documents(tmp_path, f'{{"text": "{document}"}}'), generator=generator)
    for (asked,) in generator.asked:
        assert "{instruction} <" in asked["content"] and asked["content"].count("</document>") <= 1
        assert sum(asked["content"].count(f"\n</{tag}>") for tag in ("document", "text", "article")) == 1


@pytest.mark.parametrize(("more", "said"), [
    ({"kinds": {}}, r"kinds \(0\)"),
    ({"max_words": 0}, "max_words 0"),
    ({"templates": {"odd": Prompt(text="{document}")}}, "template odd must have the places .* and has document"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(more: dict[str, Any], said: str) -> None:
    template = Prompt(text="{document} {instruction}")
    given: dict[str, Any] = {"documents": ListedRows(rows=[{"text": "a"}]), "kinds": {"a": "b"}}
    with pytest.raises(ValueError, match=said):
        ClosedQa(**{**given, "templates": {"one": template}, **more})
    assert ClosedQa(**given, templates={"one": template}).max_rows() is None
