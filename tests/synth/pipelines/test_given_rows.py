"""Tests that given rows pass through a run's filters, keep what they hold, and that nobody is asked but by a filter."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.synth.filters.exact_copies import ExactCopies
from nemo_vfm.synth.filters.guarded_rows import GuardedRows
from nemo_vfm.synth.given.given_tasks import GivenTasks
from nemo_vfm.synth.given.row_file import RowFile
from nemo_vfm.synth.given.row_source import ListedRows
from nemo_vfm.synth.pipelines.closed_qa import ClosedQa
from nemo_vfm.synth.pipelines.dialogues import Dialogues
from nemo_vfm.synth.pipelines.given_rows import GivenRows
from nemo_vfm.synth.pipelines.upsampler import Upsampler
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import Ask, Draft
from nemo_vfm.synth.programs.synthesize import Synthesize
from tests.support.told_models import ToldModel, ledger_of, ran


class Unmentioned:
    """Refuses a row whose last turn says a word."""

    def __init__(self, word: str) -> None:
        self.word = word

    def broken_rule(self, draft: Draft) -> str | None:
        return f"says {self.word}" if self.word in str(draft.messages[-1]["content"]) else None


class Judged:
    def prompts(self) -> dict[str, frozenset[str]]:
        return {"judge": frozenset({"answer"})}

    def roles(self) -> list[str]:
        return ["judge"]

    def rule_program(self, draft: Draft) -> Any:
        ((verdict),) = yield [Ask("judge", {"answer": str(draft.messages[-1]["content"])}, model="judge")]
        return "judged" if verdict == "bad" else None


def passed(folder: Path, rows: Any, *filters: Any, generator: Any = None, **more: Any) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    columns = {name: more.pop(name) for name in ("column", "answer", "licence") if name in more}
    job = Synthesize(
        pipeline=GivenRows(rows=rows, **columns), prompts=more.pop("prompts", {}),
        generator=generator or ToldModel(), filters=filters, rows=10**9, min_yield=0.1, **more,
    )  # fmt: skip
    job.run(Run(folder))
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_rows_of_a_run_pass_with_all_they_hold_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    made = ran(tmp_path / "run", "preferences", "rows=6", "licence=CC0")
    generator, word = ToldModel(), made[0]["prompt"][-1]["content"].split()[2]
    rows = RowFile(path=tmp_path / "run/rows.jsonl")
    kept = passed(tmp_path / "kept", rows, Unmentioned(word), generator=generator, column="prompt")
    wanted = [row for row in made if word not in row["prompt"][-1]["content"]]
    assert 0 < len(kept) == len(wanted) < 6 and not generator.asked
    for row, before in zip(kept, wanted, strict=True):
        assert "messages" not in row
        same = ("prompt", "chosen", "rejected", "scores", "verifier", "licence", "generator", "models")
        assert all(row[name] == before[name] for name in same)
        assert row["parents"] == {"given": row["parents"]["given"], "given_id": before["id"], **before["parents"]}
        assert row["given_row"]["asked"] == before["asked"] and row["asked"] == []
    assert ledger_of(tmp_path / "kept")["dropped"] == {f"says {word}": 6 - len(kept)}


def test_a_strangers_rows_keep_their_columns_and_have_no_generator_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    odd = {"scores": [1], "licence": {"of": 1}, "seed": "x"}
    rows = [{"q": f"Ask {number}", "a": f"Answer {number}", "n": number, **odd} for number in range(1200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = passed(tmp_path / "kept", RowFile(path=path), column="q", answer="a")
    assert len(kept) == 1200 and kept[7]["n"] == 7 and kept[7]["generator"] is None
    assert [message["content"] for message in kept[7]["messages"]] == ["Ask 7", "Answer 7"]
    assert kept[7]["given_row"] == odd and kept[7]["scores"] == {}
    assert kept[7]["parents"] == {"given": "x.jsonl line 8"}


@pytest.mark.parametrize("named", [False, True])
def test_texts_and_licences_come_from_the_columns_that_are_named(named: bool) -> None:
    caption = "One two three four five six seven eight nine ten eleven."
    rows = ListedRows(rows=[{"text": caption, "caption": caption, "messages": caption, "licence": "MIT",
                             "other": caption.upper(), "terms": "CC0"}])  # fmt: skip
    columns = {"column": "other", "licence": "terms"} if named else {}
    template = Prompt(text="{document} {instruction}")
    made = [
        ClosedQa(documents=rows, kinds={"a": "b"}, templates={"one": template}, min_quotations=0, **columns),
        Upsampler(rows=rows, min_caption_words=9, max_new_words=9, max_share=1.0, **columns),
        GivenRows(rows=rows, **columns),
    ]
    for pipeline in made:
        draft = first(pipeline, "- one two")
        assert isinstance(draft, Draft), draft
        text = next(str(one["content"]) for one in draft.messages if "three" in str(one["content"]).lower())
        assert ("THREE" in text, draft.licence) == (named, "CC0" if named else "MIT")


@pytest.mark.parametrize(("settings", "rule"), [
    ({}, None), ({"min_quotations": 2}, "the answer quotes too little"),
    ({"min_words": 4}, "the answer quotes too little"), ({"min_words": 1}, "a quotation is not in the"),
])  # fmt: skip
def test_how_many_quotations_of_how_many_words_are_asked_for(settings: dict[str, int], rule: str | None) -> None:
    rows = ListedRows(rows=[{"text": "The old town lies by the sea."}])
    template = {"one": Prompt(text="{document} {instruction}")}
    made = first(ClosedQa(documents=rows, kinds={"a": "b"}, templates=template, **settings),
                 '- It says "old town lies", and not "city".')  # fmt: skip
    assert isinstance(made, Draft) if rule is None else made.rule.startswith(rule)


@pytest.mark.parametrize("turns", [1, 4])
def test_a_dialogue_has_so_many_turns(turns: int) -> None:
    tasks = GivenTasks(rows=ListedRows(rows=[{"prompt": "Ask."}]), column="prompt")
    program = next(iter(told(Dialogues(tasks=tasks, personas=["a cook"], turns=turns).candidates(), "")))
    said, asks = 0, next(program)
    with pytest.raises(StopIteration) as end:
        while True:
            said += 1
            asks = program.send([f"Words number {said}"] * len(asks))
    assert [one["role"] for one in end.value.value.messages] == ["user", "assistant"] * turns


def first(pipeline: Any, answer: str) -> Any:
    """What becomes of the first row, where a model says the same to everything."""
    return told(next(iter(told(pipeline.candidates(), answer))), answer)


def told(program: Any, answer: str) -> Any:
    try:
        asks = next(program)
        while True:
            asks = program.send([answer] * len(asks))
    except StopIteration as end:
        return end.value


def test_a_filter_that_asks_is_all_that_asks_and_its_model_is_named(tmp_path: Path) -> None:
    rows = ListedRows(rows=[{"messages": f"Ask {name}."} for name in ("one", "bad", "two")])
    judge = ToldModel(lambda messages: "bad" if "bad" in messages[0]["content"] else "good", "judge")
    prompts, generator = {"judge": Prompt(text="{answer}")}, ToldModel()
    kept = passed(tmp_path, rows, Judged(), prompts=prompts, models={"judge": judge}, generator=generator)
    assert [row["parents"]["given"] for row in kept] == ["sample row 1", "sample row 3"]
    assert all(row["models"] == {"judge": ["judge", 0]} for row in kept)
    assert len(judge.asked) == 3 and not generator.asked and ledger_of(tmp_path)["dropped"] == {"judged": 1}


def test_a_column_that_a_stranger_calls_chosen_stays_and_stops_no_filter(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"messages": f"Ask {number}.", "chosen": chosen} for number, chosen in enumerate(("One.", 3, ["a"], None))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    guard = ToldModel(lambda messages: "unsafe\nS1" if "3" in messages[-1]["content"] else "safe", "guard")
    filters = (ExactCopies(turns="all"), GuardedRows(prompt=None))
    kept = passed(tmp_path / "kept", RowFile(path=path), *filters, models={"guard": guard})
    assert [row["chosen"] for row in kept] == ["One.", 3, ["a"]]
    assert ledger_of(tmp_path / "kept")["dropped"] == {"unsafe: S1": 1}
