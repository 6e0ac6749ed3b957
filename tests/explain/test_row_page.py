"""Tests that `explain RUN ROW` shows a synthetic row with what it was made from and each answer on the way."""

import json
from pathlib import Path

import pytest

from nemo_vfm.asking.journal import Journal
from nemo_vfm.cli.main import main

CODE = "def f():\n    return 1"


def row(name: str, *keys: str) -> dict[str, object]:
    messages = [{"role": "user", "content": f"question of {name}"}, {"role": "assistant", "content": CODE}]
    call = {"function": {"name": "look", "arguments": '{"at": 3}'}}
    messages[1] |= {"tool_calls": [call]} if keys else {}  # type: ignore[dict-item]
    asked = [{"key": key, "prompt": f"prompt-{place}"} for place, key in enumerate(keys)]
    return {"id": name, "messages": messages, "parents": {"topic": f"topic of {name}"}, "scores": {"clear": 4.5},
            "generator": {"name": "g"}, "seed": 17, "asked": asked}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [row("first"), row("second", "k1", "k2", "k1"), {**row("third", "k2"), "verifier": "ran it"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    with Journal(file=tmp_path / "answers.jsonl").open() as journal:
        for key, text in (("k1", "an earlier answer"), ("k0", "another row's"), ("k1", "yes")):
            journal.put(key, {"model": f"model of {key}", "text": text})
    return tmp_path


def test_a_row_is_told_with_its_own_texts_facts_and_answers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(run), "second"]) == 0
    told = capsys.readouterr().out
    lines = [line.strip() for line in told.splitlines()]
    for line in ("row second", "question of second", "topic: topic of second", "clear: 4.5", "seed: 17",
                 'calls look {"at": 3}', 'generator: {"name": "g"}'):  # fmt: skip
        assert line in lines, line
    assert "\n  def f():\n      return 1\n" in told, "as far in as it stands there"
    answers = [lines[place : place + 2] for place, line in enumerate(lines) if line.startswith("answer ")]
    assert answers == [["answer 1: prompt prompt-0", "model of k1: yes"],
                       ["answer 2: prompt prompt-1", "no longer in the journal"],
                       ["answer 3: prompt prompt-2", "model of k1: yes"]]  # fmt: skip
    assert "another row's" not in told and "first" not in told and "verified" not in told
    assert main(["explain", str(run), "third"]) == 0
    assert "verified: ran it" in capsys.readouterr().out


def test_machines_get_the_row_with_its_answers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(run), "second", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    answers = [one.pop("answer") for one in found["asked"]]
    assert [answer and answer["text"] for answer in answers] == ["yes", None, "yes"]
    assert found == row("second", "k1", "k2", "k1")
    (run / "answers.jsonl").unlink()
    assert main(["explain", str(run), "third", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["asked"][0]["answer"] is None


@pytest.mark.parametrize(
    ("name", "said"), [(["fourth"], "3 rows and none named fourth: "), (["fir"], "named fir: "), ([], "has 3 rows: ")]
)
def test_a_row_that_is_not_there_is_a_sentence_with_one_that_is(run: Path, capsys, name: list[str], said: str) -> None:
    assert main(["explain", str(run), *name]) == 2
    message = capsys.readouterr().err
    assert said in message and message.rstrip().endswith("first")


def test_a_preference_is_told_with_its_prompt_and_both_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = {name: [{"role": "user", "content": f"text of {name}"}] for name in ("prompt", "chosen", "rejected")}
    (tmp_path / "rows.jsonl").write_text(json.dumps({name: one for name, one in row("a").items()
                                                     if name != "messages"} | pair) + "\n")  # fmt: skip
    assert main(["explain", str(tmp_path), "a"]) == 0
    told = capsys.readouterr().out
    for head, name in (("user", "prompt"), ("chosen", "chosen"), ("rejected", "rejected")):
        assert f"{head}\n  text of {name}" in told
