"""Tests that what models think changes no row: it stands beside it, and nobody is asked about it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.network.chat import ChatAnswer, said_in
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.given.given_tasks import GivenTasks
from nemo_vfm.synth.given.row_source import ListedRows
from tests.support.chat_server import answer
from tests.support.told_models import ToldModel, ran

#: What would be a list, a box, scores and a verdict.
THOUGHT = 'Perhaps:\n1. one MUSING\n2. two\n\\boxed{7} {"helpfulness": 4, "coherence": 0} helpfulness: 1\nno\nA'


class Thinker(ToldModel):
    """Says what the embedded responder says, after a thought about it."""

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        text = super().say(messages).text
        return said_in(answer(f"<think>\n{THOUGHT} {len(text)}\n</think>\n\n{text}"), 0.0)


def without(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the model is called, and without thoughts."""
    return {name: value for name, value in row.items() if name not in ("asked", "generator", "models")
            and not name.endswith("thought")}  # fmt: skip


@pytest.mark.parametrize("recipe", [
    "open_qa", "preferences", "ratings", "dialogues", "math", "closed_qa", "functions", "incapable",
])  # fmt: skip
def test_rows_of_models_that_think_are_those_of_models_that_do_not(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "plain").mkdir()
    changes = ["rows=6", "min_yield=0", "generator.error_rate=0"]
    if recipe == "preferences":
        changes.append("pipeline.tasks.revise=true")  # a task that is all of an answer
    plain = ran(tmp_path / "plain", recipe, *changes)
    roles = ("judge", "reward", "other", "checker", "guard")
    models = {"generator": Thinker(), **{role: Thinker(name=role) for role in roles}}
    (tmp_path / "thinking").mkdir()
    found = ran(tmp_path / "thinking", recipe, *changes, **models)
    assert [without(row) for row in found] == [without(row) for row in plain] and len(found) == 6
    assert "MUSING" not in str([model.asked for model in models.values()])
    names = ("chosen", "rejected") if recipe == "preferences" else ("messages",)
    for row in found:
        assert ("thought" in row) == (recipe != "preferences")
        for name in names:
            thought = row["thought" if name == "messages" else f"{name}_thought"]
            assert thought == f"{THOUGHT} {len(row[name][-1]['content'])}", "of the last answer"
    assert pq.read_table(tmp_path / "thinking/rows.parquet").column_names == [*found[0]]


def test_a_thought_is_explained_and_is_in_no_row_that_had_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = ran(tmp_path, "open_qa", "rows=1", generator=Thinker())
    assert main(["explain", str(tmp_path), row["id"]]) == 0
    assert "thought: Perhaps:" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    assert not [name for row in ran(tmp_path / "other", "open_qa", "rows=1") for name in row if "thought" in name]


def test_thoughts_of_given_conversations_are_not_sent_on() -> None:
    talk: Any = [{"role": "user", "content": "<think> is a tag"},
                 {"role": "assistant", "content": "<think>Hm.</think>\nIt is.", "reasoning_content": "Hm."},
                 {"role": "user", "content": "Sure?"}]  # fmt: skip
    (task,) = GivenTasks(rows=ListedRows(rows=[{"messages": talk}])).each()
    assert task.messages == [talk[0], {"role": "assistant", "content": "It is."}, talk[2]]
    assert json.dumps(talk).count("Hm.") == 2, "what was given stays as it is"
