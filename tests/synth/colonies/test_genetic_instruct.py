"""Tests how colonies grow: what is fit, what descends from what, and what is like an earlier task."""

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.limited_child import protections
from nemo_vfm.synth.checks.program_model import ProgramModel
from nemo_vfm.synth.colonies.genetic_instruct import Colony, GeneticInstruct, Offspring, Reproduction
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.row_program import Ask, Draft, DroppedRow
from tests.support.told_models import ToldModel, ledger_of, ran

SMALL = ("pipeline.colonies=2", "pipeline.generations=2", "pipeline.offspring=4", "rows=16", "min_yield=0")


def runner(ending: str = "ok", reached: bool = True) -> ToldModel:
    """Runs nothing, and says that programs end so."""
    end = {"ending": ending, "reached_end": reached, "stdout": "", "stderr": ""}
    return ToldModel(lambda messages: json.dumps(end), "python")


def judge(score: float = 4) -> ToldModel:
    return ToldModel(lambda messages: f"task: 4\nsolution: {score}", "judge")


def writer(**answers: str) -> ToldModel:
    """A generator that answers a prompt, by the word in its place, as is given; the rest is right."""
    words = {
        "instruct": "Write one programming",
        "harder": "task harder",
        "solve": "Solve this",
        "tests": "Write tests",
    }
    right = {
        "instruct": "Task: number {n}: write a function f.", "harder": "number {n}, harder: write a function f.",
        "solve": "So:\n```python\ndef f():\n    return 1\n```",
        "tests": "```python\n" + 3 * "assert f() == 1\n" + "```",
    }  # fmt: skip
    every, count = right | answers, iter(range(10**6))

    def tell(messages: Sequence[Json]) -> str:
        asked = str(messages[-1]["content"])
        (prompt,) = [name for name, part in words.items() if part in asked]
        return every[prompt].replace("{n}", str(next(count)) * 9)

    return ToldModel(tell)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs are run on Linux alone")
def test_a_row_has_a_solution_that_passed_its_tests_and_every_answer_on_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (here := protections()).files or not here.network or not here.processes:
        pytest.skip(f"this machine cannot limit a program: {here}")
    rows = ran(tmp_path, "code", *SMALL, judge=judge(), python=ProgramModel())
    known = {line["key"]: line for line in map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())}
    assert len(rows) > 6 and {row["parents"]["colony"] for row in rows} == {0, 1}
    for row in rows:
        birth = {"mutation": "harder/1", "examples": "instruct/1"}[row["parents"]["operator"]]
        assert [one["prompt"] for one in row["asked"]] == [birth, "solve/1", "tests/1", "as it is/1", "fitness/1"]
        assert [one["model"] for one in row["asked"]] == ["generator"] * 3 + ["python", "judge"]
        texts = [known[one["key"]]["value"]["text"] for one in row["asked"]]
        assert row["messages"] == [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]
        assert json.loads(texts[3])["reached_end"] and row["verifier"] == "python: 4 of 4 tests pass"
        assert row["tests"] in texts[2] and row["scores"] == {"task": 4, "solution": 4}
        assert row["models"]["python"][0] == "python" and "def scale_" not in row["tests"]
    assert main(["explain", str(tmp_path), rows[0]["id"]]) == 0
    assert "\n      return " in capsys.readouterr().out, "code stands as it was written"
    assert ledger_of(tmp_path)["in"] == 16 and "a solution that fails its tests" in ledger_of(tmp_path)["dropped"]


@pytest.mark.parametrize(("models", "rule"), [
    ({"generator": writer(solve="No.")}, "a solution without code"),
    ({"generator": writer(solve="```python\ndef f(:\n```")}, "a solution that does not compile"),
    ({"generator": writer(solve="```python\nx = 1\n```")}, "a solution without a function or class to test"),
    ({"generator": writer(tests="```python\nassert f( ==\n```")}, "tests that do not compile"),
    ({"generator": writer(tests="Looks right.")}, "tests that do not compile"),
    ({"generator": writer(tests="```python\nassert f() == 1\nassert True\nassert 1\n```")}, "too few tests"),
    ({"generator": writer(tests="```python\ndef f():\n    return 1\n" + "assert f()\n" * 4 + "```")}, "too few tests"),
    ({"python": runner("error", False)}, "a solution that fails its tests"),
    ({"python": runner("ok", False)}, "a solution that fails its tests"),
    ({"python": runner("timeout", False)}, "its program takes too long"),
    ({"python": runner("memory", False)}, "its program takes too much memory"),
    ({"python": runner("output", False)}, "its program writes too much"),
    ({"judge": judge(2.5)}, "judged below the least score"),
])  # fmt: skip
def test_what_is_not_fit_is_dropped_by_its_rule(tmp_path: Path, models: dict[str, Any], rule: str) -> None:
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        ran(tmp_path, "code", *SMALL, **{"generator": writer(), "python": runner(), "judge": judge(), **models})
    assert ledger_of(tmp_path)["dropped"] == {rule: 8}, "a generation without a fit task is the last"


def test_a_judge_that_gives_no_scores_fails_the_row_and_a_model_that_runs_nothing_ends_the_run(tmp_path: Path) -> None:
    prose = ToldModel(lambda messages: "task: 5\nsolution: 4")
    with pytest.raises(NemoVfmError, match="Most often: the judge gave the task no number from 0 to 4"):
        ran(tmp_path, "code", *SMALL, generator=writer(), python=runner(), judge=prose)
    with pytest.raises(UserError, match=r"does not report a run: 'yes'; give models.python"):
        ran(tmp_path, "code", *SMALL, generator=writer(), python=ToldModel(lambda messages: "yes"))


def test_tasks_descend_from_fit_ones_and_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    def late(messages: Sequence[Json]) -> None:
        time.sleep(random.random() / 300)

    more = ("pipeline.population=5", "pipeline.generations=4", "rows=32", "pipeline.max_jaccard=1")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        rows = ran(tmp_path / name, "code", *SMALL, *more, generator=ToldModel(late), python=runner(), judge=judge())
    one, other = ((tmp_path / name / "rows.jsonl").read_bytes() for name in ("one", "other"))
    assert one == other and ledger_of(tmp_path / "one")["dropped"]
    again = ToldModel(late)
    ran(tmp_path / "one", "code", *SMALL, *more, generator=again, python=runner(), judge=judge())
    assert not again.asked and (tmp_path / "one/rows.jsonl").read_bytes() == one, "nothing is asked twice"
    made = {row["messages"][0]["content"]: row["parents"] for row in rows}
    last = [parents for parents in made.values() if parents["generation"] == 3]
    ancestors = [task for parents in last for task in parents["tasks"]]
    assert {made[task]["generation"] for task in ancestors} <= {0, 1, 2}, "seeds are displaced by what is fit"
    assert all(made[task]["colony"] == parents["colony"] for parents in last for task in parents["tasks"])


def test_a_task_like_an_earlier_one_of_any_colony_is_dropped(tmp_path: Path) -> None:
    def tell(messages: Sequence[Json]) -> str | None:
        asked = str(messages[-1]["content"])
        if "Write one programming task" in asked or "task harder" in asked:
            text = "Write a function f that returns how many of the letters of a text are vowels, in capitals or not"
            return text + ("." if len(asked) % 2 else ", please.")
        return writer()._tell(messages)

    rows = ran(tmp_path, "code", *SMALL, generator=ToldModel(tell), python=runner(), judge=judge())
    found = ledger_of(tmp_path)["dropped"]
    assert len(rows) == 1 and found == {"a repeat of an earlier task": 14, "nearly an earlier task": 1}


def test_of_a_population_the_fittest_stay_and_of_equals_the_younger() -> None:
    colony = Colony(0, ["old", "older"], 6.0, Reproduction(("more",), 0.5, 3, 4, 3))

    def child(task: str, score: float, end: Draft | DroppedRow) -> Offspring:
        return Offspring(Ask("instruct"), {}, task, [], {"task": score, "solution": 3}, end)

    row = Draft([])
    colony.admit([child("unfit", 4, DroppedRow("judged")), child("good", 4, row), child("same", 3, row)])
    assert colony.tasks()[:2] == ["good", "same"] and colony.tasks()[2] in ("old", "older")


@pytest.mark.parametrize("more", [
    {"mutations": []}, {"mutation_share": 1.5}, {"colonies": 0}, {"min_score": 5}, {"max_jaccard": 0},
    {"examples": 0},
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|must be from 0 to 1"):
        GeneticInstruct(**{"seeds": TextBank(texts=["a"]), "mutations": ["b"], **more})
