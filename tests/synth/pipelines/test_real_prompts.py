"""Tests that the halves of given prompts share none, that flags and copies are counted, and what each half holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.job import Run
from nemo_vfm.synth.pipelines.real_prompts import RealPrompts, half_of
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from nemo_vfm.synth.programs.row_program import Ask, Draft, RowTask
from tests.support.repository import ROOT
from tests.support.told_models import ToldModel, ledger_of, ran

FILE = "{_target_: nemo_vfm.synth.given.row_file.RowFile, path: %s}"


def half(folder: Path, name: str, rows: list[dict[str, Any]], *changes: str, **models: Any) -> list[dict[str, Any]]:
    (folder / name).mkdir()
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"flagged": False, **row}) + "\n" for row in rows))
    given = [f"pipeline.half={name}", f"pipeline.tasks.rows={FILE % path}", "rows=9999", "min_yield=0.1"]
    given += ["pipeline.guard=null"]
    return ran(folder / name, "real_prompts", *given, *changes, **models)


def prompts_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][0]["content"] for row in rows]


def test_the_halves_are_all_prompts_and_share_none_not_even_one_written_otherwise(tmp_path: Path) -> None:
    texts = [f"Tell me about number {number}." for number in range(100)]
    rows = [{"prompt": form(text)} for text in texts for form in (str, str.upper, lambda text: f" {text[:-1]}?!", str)]
    sft, preference = (prompts_of(half(tmp_path, name, rows)) for name in ("sft", "preference"))
    assert len(sft) + len(preference) == 200 and len(sft) % 2 == len(preference) % 2 == 0
    plain = [{text.lower().strip(" .?!") for text in side} for side in (sft, preference)]
    assert not plain[0] & plain[1] and 35 < len(plain[0]) < 65
    told = ledger_of(tmp_path / "sft")
    assert told["dropped"] == {"copy of an earlier prompt": 200, "prompt of the other half": len(preference)}


def test_a_prompt_is_in_the_same_half_wherever_it_stands(tmp_path: Path) -> None:
    rows = [{"prompt": f"Ask {number}."} for number in range(40)]
    (tmp_path / "turned").mkdir()
    one = prompts_of(half(tmp_path, "sft", rows))
    other = prompts_of(half(tmp_path / "turned", "sft", [*reversed(rows), {"prompt": "More"}]))
    assert set(one) == set(other) - {"More"}
    (tmp_path / "salted").mkdir()
    assert set(prompts_of(half(tmp_path / "salted", "sft", rows, "pipeline.salt=other"))) != set(one)
    tasks = [RowTask([{"role": "user", "content": f"{number}"}]) for number in range(2000)]
    assert 350 < sum(half_of(task, 0.2) == "sft" for task in tasks) < 450
    assert sum(half_of(task, 0.5) != half_of(task, 0.5, "other") for task in tasks) > 800


def test_conversations_that_begin_alike_are_in_one_half() -> None:
    def talk(number: int, *more: str) -> RowTask:
        turns = [f"Begin {number}.", *more]
        return RowTask([{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)])

    for number in range(50):
        assert half_of(talk(number), 0.5) == half_of(talk(number, "One", "And then?"), 0.5)


def test_one_half_is_answered_and_the_other_stays_tasks_that_are_read_again(tmp_path: Path) -> None:
    generator = ToldModel(lambda messages: "Yes.")
    rows = [{"prompt": f"Ask {number}."} for number in range(40)]
    sft = half(tmp_path, "sft", rows, generator=generator)
    asked = len(generator.asked)
    assert [message["content"] for message in sft[0]["messages"][1:]] == ["Yes."] and asked == len(sft) > 0
    preference = half(tmp_path, "preference", rows, generator=generator)
    assert len(generator.asked) == asked and {len(row["messages"]) for row in preference} == {1}
    assert {row["generator"] for row in preference} == {None} and {row["flagged"] for row in preference} == {""}
    rows_of = FILE % (tmp_path / "preference/rows.jsonl")
    again = f"{{_target_: nemo_vfm.synth.given.given_tasks.GivenTasks, rows: {rows_of}}}"
    (tmp_path / "pairs").mkdir()
    pairs = ran(tmp_path / "pairs", "preferences", f"pipeline.tasks={again}", "rows=3")
    assert pairs[0]["prompt"] in [row["messages"] for row in preference] and pairs[0]["parents"]["given_id"]


class Guard:
    def prompts(self) -> dict[str, frozenset[str]]:
        return {}

    def roles(self) -> list[str]:
        return ["guard"]

    def rule_program(self, draft: Draft) -> Any:
        ((verdict),) = yield [Ask(None, before=tuple(draft.messages), model="guard")]
        return "unsafe: S1" if verdict == "unsafe" else None


def test_what_is_flagged_by_the_data_or_a_guard_is_in_the_preference_half_alone(tmp_path: Path) -> None:
    guard = ToldModel(lambda messages: "unsafe" if "2" in messages[0]["content"] else "safe", "guard")
    rows = [{"prompt": f"Ask {number}.", "flagged": number % 10 == 3} for number in range(60)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    for name in ("sft", "preference"):
        (tmp_path / name).mkdir()
        job = build(compose(str(ROOT / "recipes/synthetic/real_prompts.yaml"), [
            f"pipeline.half={name}", f"pipeline.tasks.rows={FILE % path}", "rows=999", "min_yield=0.1"]))  # fmt: skip
        job.pipeline.guard, job.models, job.generator = Guard(), {"guard": guard}, ToldModel()
        assert list(job.pipeline.roles()) == ["guard"]
        job.run(Run(tmp_path / name))
        found[name] = [json.loads(line) for line in (tmp_path / name / "rows.jsonl").read_text().splitlines()]
    for row, (text,) in zip(found["sft"], ([p] for p in prompts_of(found["sft"])), strict=True):
        assert "2" not in text and int(text[4:-1]) % 10 != 3 and row["models"] == {"guard": ["guard", 0]}
    told = ledger_of(tmp_path / "sft")["dropped"]
    assert told["flagged in the data"] > 0 and told["unsafe: S1"] > 0
    flags = {
        text: row["flagged"] for text, row in zip(prompts_of(found["preference"]), found["preference"], strict=True)
    }
    assert {flags[text] for text in flags if int(text[4:-1]) % 10 == 3} == {"flagged in the data"}
    assert {flags[text] for text in flags if "2" in text and int(text[4:-1]) % 10 != 3} == {"unsafe: S1"}


def test_rows_that_are_asked_nothing_are_no_finished_run(tmp_path: Path) -> None:
    job = build(compose(str(ROOT / "recipes/synthetic/real_prompts.yaml"), ["pipeline.half=preference", "rows=5"]))
    assert not job.run(Run(tmp_path)).did_nothing
    with pytest.raises(NemoVfmError, match=r"below min_yield 0.9. Most often: prompt of the other half"):
        ran(tmp_path, "real_prompts", "min_yield=0.9")
    with pytest.raises(ValueError, match="sft_share must be above 0 and below 1, got 1"):
        RealPrompts(tasks=TopicTasks(), half="sft", sft_share=1)
