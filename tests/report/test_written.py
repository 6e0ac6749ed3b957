"""Tests what the page says of right and damaged texts.jsonl and judged.json."""

import json
from pathlib import Path

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section
from nemo_vfm.report.sections import generated_texts
from tests.report.conftest import read_page


def lines(folder: Path, texts: list[str]) -> None:
    folder.mkdir()
    rows = [json.dumps({"index": n, "prompt": f"Begin {n}", "text": text}) for n, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(rows) + "\n")


def shown(folder: Path) -> Section:
    run = RunFolder.open(folder)
    (found,) = generated_texts.sections(run, SectionMedia(run, 0))
    return found


def test_texts_stand_beside_those_of_the_untrained_model_with_what_is_wrong(tmp_path: Path) -> None:
    lines(tmp_path / "write", ["good <b>text</b>.", "bad.", "cut"])
    lines(tmp_path / "untrained", ["xx", "yy", "zz"])
    (tmp_path / "judge").mkdir()
    judged = {"grammatical": 1 / 3, "untrained": {"grammatical": 0.0}, "texts": [
        {"grammatical": True, "wrong": []}, {"grammatical": False, "wrong": ["'bad.': no"]},
        {"grammatical": False, "wrong": []}]}  # fmt: skip
    (tmp_path / "judge/judged.json").write_text(json.dumps(judged))
    found = shown(tmp_path)
    text = read_page(f"<div>{found.body}</div>").text
    for word in ("Begin 0", "good <b>text</b>.", "consistent", "'bad.': no", "no complete sentence", "xx", "untrained"):
        assert word in text, word
    assert [(card.value, card.note) for card in found.cards] == [("33%", "untrained 0%")]


def test_texts_alone_are_shown_and_damage_stops_nothing(tmp_path: Path) -> None:
    lines(tmp_path / "write", [f"text {n}" for n in range(20)])
    (tmp_path / "judged.json").write_text('{"texts": [3], "grammatical": "much"}')
    with (tmp_path / "write/texts.jsonl").open("a") as file:
        file.write("{\n[]\n")
    found = shown(tmp_path)
    text = read_page(f"<div>{found.body}</div>").text
    assert "text 11" in text and "text 12" not in text and not found.cards


def test_texts_of_several_trained_models_stand_side_by_side_and_none_is_lost(tmp_path: Path) -> None:
    for name in ("early", "late_ema", "untrained"):
        lines(tmp_path / name, [f"by {name}"])
    (tmp_path / "judged.json").write_text('{"texts": [{"grammatical": true, "wrong": []}]}')
    text = read_page(f"<div>{shown(tmp_path).body}</div>").text
    for name in ("early by early", "late ema by late_ema", "untrained by untrained"):
        assert name in text, name
    assert "agrees with" not in text, "nobody says which of them was judged"
