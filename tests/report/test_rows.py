"""Tests the numbers that the page has of synthetic rows: means by source, preferences, costs, topics."""

import json
from pathlib import Path
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section
from nemo_vfm.report.sections import conversations, row_scores
from tests.report.conftest import read_page


def sections_of(part: Any, folder: Path, rows: list[dict[str, Any]], ledger: dict[str, Any]) -> dict[str, Section]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "ledger.json").write_text(json.dumps(ledger))
    run = RunFolder.open(folder)
    return {section.title: section for section in part.sections(run, SectionMedia(run, 0))}


def text(section: Section) -> str:
    return read_page(f"<div>{section.body}</div>").text


def test_the_mean_of_a_score_is_of_the_rows_of_its_source_that_have_it(tmp_path: Path) -> None:
    rows = [
        {"parents": {"topic": "sea"}, "scores": {"clear": 1, "kind": 5}},
        {"parents": {"topic": "sea", "source": "web"}, "scores": {"clear": 4}},
        {"parents": {"topic": "sea"}, "scores": {"clear": 3, "kind": None}},
        {"parents": {}, "scores": {"clear": 0, "kind": "high"}}, {"parents": {"topic": "air"}},
    ]  # fmt: skip
    (found,) = sections_of(row_scores, tmp_path, rows, {}).values()
    said = text(found)
    for line in ("all rows 4 2.00 5.00", "sea 2 2.00 5.00", "web 1 4.00 –", "no source named 1 0.00 –"):
        assert line in said, line
    assert "air" not in said


def test_a_preference_is_counted_for_who_won_and_who_lost_and_who_decided(tmp_path: Path) -> None:
    pairs = [("a", "b", "judge"), ("a", "b", "judge"), ("b", "a", "length"), ("c", "a", "judge")]
    rows = [{"parents": {"chosen_by": won, "rejected_by": lost, "decided_by": by}} for won, lost, by in pairs]
    (found,) = sections_of(row_scores, tmp_path, rows, {}).values()
    assert "a 2 2 50% b 1 2 33% c 1 0 100%" in text(found) and "judge 3 length 1" in text(found)


def test_costs_add_up_over_models_and_are_divided_by_rows(tmp_path: Path) -> None:
    writer = {"asked": 10, "recalled": 2, "tokens_in": 100, "tokens_out": 40, "money": 1.5}
    judge = {"asked": 5, "recalled": 0, "tokens_in": 60, "tokens_out": 0, "money": 0.5}
    rows = [{"parents": {}}] * 4
    (found,) = sections_of(row_scores, tmp_path, rows, {"uses": {"writer": writer, "judge": judge}}).values()
    assert "writer 10 2 100 40 1.5 judge 5 0 60 0 0.5 all 15 2 160 40 2" in text(found)
    assert [(card.value, card.note) for card in found.cards] == [("200", "50 a row"), ("2", "0.5 a row")]
    (free,) = sections_of(row_scores, tmp_path, [], {"uses": {"judge": judge | {"money": 0}}}).values()
    assert [(card.value, card.note) for card in free.cards] == [("60", "")]


def test_rows_are_shown_by_topic_with_the_share_of_words_that_differ(tmp_path: Path) -> None:
    """Answers alone count: three of four runs of three words differ; what users say is the same in each row."""
    answers = ["one two three four", "one two three five", "alone"]
    rows = [{"id": f"r{place}", "parents": {"topic": "sea"} if place else {},
             "messages": [{"role": "user", "content": "the same words again and again"},
                          {"role": "assistant", "content": answer}]}
            for place, answer in enumerate(answers)]  # fmt: skip
    (found,) = sections_of(conversations, tmp_path, rows, {"rows": {"in": 7}}).values()
    assert [(card.value, card.note) for card in found.cards] == [("3", "of 7 candidates"), ("75%", "of the answers")]
    assert "3 rows on 1 topics" in found.lead and text(found).endswith("sea 2")
    assert all(word in text(found) for word in ("r0", "one two three five", "the same words again"))


def test_of_a_preference_the_prompt_and_both_answers_are_shown(tmp_path: Path) -> None:
    names = ("prompt", "chosen", "rejected")
    row = {"id": "r0", **{name: [{"role": "user", "content": f"text of {name}"}] for name in names}}
    (found,) = sections_of(conversations, tmp_path, [row], {}).values()
    assert all(f"text of {name}" in text(found) for name in names)
