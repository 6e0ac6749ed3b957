"""Tests problems whose solutions are kept only where another solution ends with the same answer."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from nemo_vfm.synth.programs.synthesize import Synthesize
from tests.support.repository import ROOT
from tests.support.told_models import ToldModel, ledger_of


def checked(folder: Path, generator: ToldModel, checker: ToldModel | None = None, rows: int = 10) -> list[Json]:
    """Rows of the math recipe; without a checker the generator solves twice."""
    made = build(compose(str(ROOT / "recipes/synthetic/math.yaml")))
    models = {"checker": checker} if checker else {}
    tasks = TopicTasks(topics=3, subtopics=2, tasks=4, revise=False, check_by="checker" if checker else "generator")
    Synthesize(
        pipeline=tasks, prompts=made.prompts, generator=generator, models=models, rows=rows, tries=1, min_yield=0.1
    ).run(Run(folder))
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def solver(text: str, name: str = "solver") -> ToldModel:
    return ToldModel(lambda messages: text if "step by step" in messages[-1]["content"] else None, name)


def test_a_row_stays_where_two_models_find_the_same_in_other_words(tmp_path: Path) -> None:
    rows = checked(tmp_path, solver("Half of it: 0.5"), solver("So we get $\\boxed{\\frac{1}{2}}$.", "other"), 3)
    for row in rows:
        assert row["verifier"] == r"final_answer: 0.5, and by checker \frac{1}{2}"
        assert row["messages"][1]["content"] == "Half of it: 0.5" and row["models"].keys() == {"checker"}
        assert [one["model"] for one in row["asked"]] == ["generator", "checker"]


@pytest.mark.parametrize(("other", "rule"), [
    ("The answer is 0.4.", "final answers that do not agree"), ("Nobody knows.", "a solution without a final answer"),
    ("(B)", "final answers that do not agree"),
])  # fmt: skip
def test_a_row_is_dropped_where_they_do_not(tmp_path: Path, other: str, rule: str) -> None:
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        checked(tmp_path, solver("The answer is 0.5."), solver(other, "other"))
    assert ledger_of(tmp_path)["dropped"].keys() == {rule}


def test_the_generator_solves_twice_where_it_checks_itself(tmp_path: Path) -> None:
    said: list[str] = []

    def tell(messages: Sequence[Json]) -> str | None:
        if "step by step" not in messages[-1]["content"]:
            return None
        said.append("The answer is 1.")
        return said[-1]

    rows = checked(tmp_path, ToldModel(tell), rows=3)
    assert len(said) == 6 and all(len({one["key"] for one in row["asked"]}) == 2 for row in rows)


def test_the_embedded_responder_solves_its_problems_and_errs_now_and_then(tmp_path: Path) -> None:
    rows = checked(tmp_path, ToldModel(), ToldModel(name="other"), 17)
    assert len(rows) == 17
    dropped = ledger_of(tmp_path)["dropped"]
    assert dropped["final answers that do not agree"] + dropped.get("a solution without a final answer", 0) < 8


def test_one_answer_of_a_conversation_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="one turn"):
        TopicTasks(turns=2, check_by="checker")
    assert TopicTasks(check_by="generator").roles() == () and TopicTasks(check_by="checker").roles() == ("checker",)
