"""Tests that turns which lead away are marked, and that a judge confirms every turn and its answer."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.embedded_responder import EmbeddedResponder
from nemo_vfm.synth.pipelines.on_topic import OnTopic
from tests.support.told_models import ToldModel, ledger_of, ran
from tests.synth.programs.test_synthesize import Shuffled

RULES = {
    "outside of the purpose": "a distractor is on topic", "last message aside": "an answer follows a distractor",
    "at this point": "an answer does not help with what is on topic",
}  # fmt: skip
SMALL = ("rows=2", "pipeline.domains=2", "pipeline.purposes=2")


def test_turns_that_lead_away_are_marked_and_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        judge, guard = (EmbeddedResponder(error_rate=0.02, name=role) for role in ("judge/1", "guard/1"))
        found.append(
            ran(tmp_path / name, "on_topic", "rows=12", generator=Shuffled(error_rate=0.005), judge=judge, guard=guard)
        )
    assert len(found[0]) == 12 and found[0] == found[1]
    ledger = ledger_of(tmp_path / "one")
    assert ledger == ledger_of(tmp_path / "other") and ledger["dropped"].keys() >= {*RULES.values()}
    for row in found[0]:
        assert [one["role"] for one in row["messages"]] == ["system", *["user", "assistant"] * 5]
        turns = {place: one["content"] for place, one in enumerate(row["messages"]) if one["role"] == "user"}
        assert row["distractors"] == [place for place, text in turns.items() if text.startswith("By the way")]
        assert len(row["distractors"]) == 2 and 1 not in row["distractors"]
        assert all(row["messages"][place + 1]["content"].startswith("I can only help") for place in row["distractors"])
        assert row["models"].keys() == {"judge", "guard"} and row["parents"].keys() == {"domain", "purpose"}
    assert len({tuple(row["distractors"]) for row in found[0]}) > 3


@pytest.mark.parametrize(("words", "rule"), RULES.items())
def test_what_the_judge_denies_drops_the_row(tmp_path: Path, words: str, rule: str) -> None:
    judge = ToldModel(lambda messages: "No." if words in str(messages[-1]["content"]) else "Yes.", "judge")
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        ran(tmp_path, "on_topic", *SMALL, judge=judge)
    assert ledger_of(tmp_path)["dropped"].keys() == {rule}


def test_the_judge_sees_the_rules_the_conversation_and_the_answer(tmp_path: Path) -> None:
    judge = ToldModel(lambda messages: "Yes.", "judge")
    row = ran(tmp_path, "on_topic", *SMALL, judge=judge)[0]
    system, *turns = (one["content"] for one in row["messages"])
    shown = [str(messages[-1]["content"]) for messages in judge.asked if system in str(messages)]
    assert len(shown) == 5 + 2 and all(f"<instructions>\n{system}\n</instructions>" in text for text in shown)
    first = next(text for text in shown if f"<answer>\n{turns[1]}\n</answer>" in text)
    assert f"<conversation>\n[user]\n{turns[0]}\n</conversation>" in first
    place = row["distractors"][0]
    (stays,) = [text for text in shown if f"<answer>\n{turns[place]}\n</answer>" in text]
    assert "last message aside" in stays and f"[user]\n{turns[place - 1]}\n</conversation>" in stays
    assert (
        sum("last message aside" in text for text in shown)
        == sum("outside of the purpose" in text for text in shown)
        == 2
    )


def test_a_user_who_repeats_drops_the_row_and_no_list_ends_the_run(tmp_path: Path) -> None:
    def again(messages: Sequence[Json]) -> str | None:
        return "The same!" if "You are the user" in str(messages[-1]["content"]) else None

    with pytest.raises(NemoVfmError, match="Most often: a turn of the user repeats an earlier one"):
        ran(tmp_path, "on_topic", *SMALL, generator=ToldModel(again))
    with pytest.raises(NemoVfmError, match="answers to requests for a list of domains"):
        ran(tmp_path, "on_topic", *SMALL, generator=ToldModel(lambda messages: "Gladly!", "glad"))


@pytest.mark.parametrize("settings", [{"turns": 2, "distractors": 2}, {"distractors": 0}, {"domains": 0}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="to one fewer than turns"):
        OnTopic(**settings)
