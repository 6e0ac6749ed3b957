"""Tests that a model plays both sides of a dialogue, and that politeness and poor dialogues are left out."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.pipelines.dialogues import Dialogues, without_filler
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from tests.support.told_models import ToldModel, ledger_of, ran

NAMES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


def test_a_persona_asks_and_the_model_answers_in_turn(tmp_path: Path) -> None:
    model = ToldModel()
    rows = ran(tmp_path, "dialogues", "rows=12", "pipeline.reward.least=-100", generator=model)
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 3
        texts = [message["content"] for message in row["messages"]]
        assert len(set(texts)) == 6 and row["scores"].keys() == {*NAMES, "reward"}
        asked = [one[0]["content"] for one in model.asked if row["parents"]["persona"] in one[0]["content"]]
        assert any(f"[user]\n{texts[0]}\n\n[assistant]\n{texts[1]}\n</conversation>" in text for text in asked)
        assert row["messages"][:3] in model.asked and row["messages"][:5] in model.asked
    assert len({row["parents"]["persona"] for row in rows}) == 3


def test_dialogues_below_the_min_reward_are_dropped(tmp_path: Path) -> None:
    def tell(messages: Sequence[Json]) -> str:
        assert len(messages) == 6 and messages[-1]["role"] == "assistant", "the whole dialogue is rewarded"
        return json.dumps(dict.fromkeys(NAMES, 1 if "bridges" in messages[0]["content"] else 2))

    rows = ran(tmp_path, "dialogues", "rows=5", "pipeline.reward.least=3", reward=ToldModel(tell))
    assert all("bridges" not in row["messages"][0]["content"] for row in rows)
    assert all(row["scores"]["reward"] == pytest.approx(2 * 1.64) for row in rows)
    assert ledger_of(tmp_path)["dropped"]["below the least reward"] > 0


@pytest.mark.parametrize(("spoken", "reason"), [
    ("Thank you so much!", "a turn of the user is only polite"),
    ("Thanks! And then?", "a turn of the user repeats an earlier one"),
])  # fmt: skip
def test_a_user_who_says_nothing_new_ends_the_dialogue(tmp_path: Path, spoken: str, reason: str) -> None:
    model = ToldModel(lambda messages: spoken if "You are the user" in messages[-1]["content"] else None)
    with pytest.raises(NemoVfmError, match=f"Most often: {reason}"):
        ran(tmp_path, "dialogues", "rows=2", "pipeline.tasks.topics=1", generator=model)


@pytest.mark.parametrize(("text", "left"), [
    ("Thank you for the answer! How long is it?", "How long is it?"),
    ('User: "Great, that helps.\n\nAnd who built it?"', "And who built it?"),
    ("That was very helpful. Thanks a lot! Why?", "Why?"),
    ("Great bridges need what?", "Great bridges need what?"),
    ("Thanks.", ""), ("Why?", "Why?"), ("me: no", "no"),
])  # fmt: skip
def test_politeness_is_cut_off_and_nothing_else(text: str, left: str) -> None:
    assert without_filler(text) == left


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="personas at least one text"):
        Dialogues(tasks=TopicTasks(), personas=[" "])
    assert Dialogues(tasks=TopicTasks(), personas=["you"]).roles() == []
