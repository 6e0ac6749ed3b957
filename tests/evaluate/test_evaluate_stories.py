"""Tests that only what a model added to a story is judged."""

import json
from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.evaluate.evaluate_stories import JudgeStories
from nemo_vfm.synth.make_stories import beginnings, story
from nemo_vfm.synth.prompts import Prompts, StoryPrompts


def written(folder: Path, texts: list[tuple[str, str]]) -> Path:
    folder.mkdir()
    lines = [json.dumps({"index": n, "prompt": prompt, "text": text}) for n, (prompt, text) in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_texts_are_judged_beyond_their_beginnings(tmp_path: Path) -> None:
    told = story(0, 1)
    begin, rest = " ".join(told.sentences[:3]), " " + " ".join(told.sentences[3:])
    texts = [
        (begin, rest),
        (begin, ""),
        (begin, " Now"),
        (begin, rest.replace(".", ". Nonsense.", 1)),
        ("Nonsense. " + begin, rest),
    ]
    baseline = written(tmp_path / "untrained", [(begin, "\u2028 x") for _ in texts])
    job = JudgeStories(texts=written(tmp_path / "trained", texts), baseline=baseline)
    outcome = job.run(Run(tmp_path / "judged"))
    found = json.loads((tmp_path / "judged/judged.json").read_text())
    assert isinstance(job, Job) and [row["grammatical"] for row in found["texts"]] == [True, False, False, False, True]
    count = len(told.sentences) - 3
    assert [(row["sentences"], row["right"]) for row in found["texts"][:4]] == [
        (count, count), (0, 0), (0, 0), (count + 1, count),
    ]  # fmt: skip
    assert found["texts"][3]["wrong"] == ["'Nonsense.': it is not a sentence of this grammar"]
    assert outcome.figures["grammatical"] == 0.4 and found["untrained"]["grammatical"] == 0
    assert outcome.summary == "self-consistent texts 2/5 (untrained 0%)"


def test_one_sentence_that_is_right_is_all_of_them(tmp_path: Path) -> None:
    sentences = story(0, 1).sentences
    texts = [(" ".join(sentences[:-1]), " " + sentences[-1])]
    JudgeStories(texts=written(tmp_path / "texts", texts)).run(Run(tmp_path / "judged"))
    found = json.loads((tmp_path / "judged/judged.json").read_text())
    assert (found["right_sentences"], found["grammatical"], found["finished"]) == (1, 1, 1)


def test_a_step_that_is_not_done_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Run that step first"):
        JudgeStories(texts=tmp_path).run(Run(tmp_path))


def test_beginnings_are_of_combinations_that_are_never_trained_on() -> None:
    source = StoryPrompts(num=5, sentences=2)
    texts = [prompt.text for prompt in source.prompts()]
    assert isinstance(source, Prompts) and len(set(texts)) == 5 and texts == [p.text for p in source.prompts()]
    for text in texts:
        who, owned = text.split()[2], text.split(" had a ")[1].split(" and ")[0]
        assert (who, *owned.split()) in beginnings(held_out=True) and text.count(".") == 2
    with pytest.raises(ValueError, match="sentences from 1 to 3"):
        StoryPrompts(sentences=4)
