"""Tests that ratings are whole numbers from 0 to 4 of five attributes, and that raters who disagree drop a row."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.pipelines.ratings import ATTRIBUTES, Ratings
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from tests.support.told_models import ToldModel, ledger_of, ran


def rated(*numbers: object) -> str:
    return "\n".join(f"{name}: {number}" for name, number in zip(ATTRIBUTES, numbers, strict=True))


def test_an_answer_bears_its_ratings(tmp_path: Path) -> None:
    judge = ToldModel(lambda messages: rated(4, 3, 2, 1, 0), "judge")
    for row in ran(tmp_path, "ratings", "rows=4", judge=judge):
        assert row["scores"] == dict(zip(ATTRIBUTES, (4, 3, 2, 1, 0), strict=True))
        assert {name: row[name] for name in ATTRIBUTES} == row["scores"]
        assert row["ratings"] == [row["scores"]] and row["messages"][-1]["role"] == "assistant"
        task, answer = (message["content"] for message in row["messages"])
        assert any(f"[user]\n{task}" in one[0]["content"] and answer in one[0]["content"] for one in judge.asked)


@pytest.mark.parametrize("answer", [rated(5, 3, 2, 1, 0), rated(4, 3, 2, 1, -1), rated(4, 3, 2.5, 1, 0), "Very good!"])
def test_what_is_no_rating_fails_the_row(tmp_path: Path, answer: str) -> None:
    with pytest.raises(NemoVfmError, match=r"the judge gave no \w+ as a whole number from 0 to 4"):
        ran(tmp_path, "ratings", "rows=2", "pipeline.tasks.topics=1", judge=ToldModel(lambda messages: answer))
    assert ledger_of(tmp_path)["kept"] == 0


def test_several_ratings_are_averaged_and_a_wide_spread_drops_the_row(tmp_path: Path) -> None:
    def in_turn() -> ToldModel:
        times = dict[str, int]()

        def tell(messages: Sequence[Json]) -> str:
            text = str(messages[0]["content"])
            times[text] = times.get(text, 0) + 1
            return rated(*[4 if times[text] % 2 else 2] * 5)

        return ToldModel(tell)

    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    settings = ["rows=2", "pipeline.raters=2", "pipeline.tasks.topics=1"]
    rows = ran(tmp_path / "near", "ratings", *settings, "pipeline.max_spread=2", judge=in_turn())
    assert all(set(row["scores"].values()) == {3.0} and len(row["ratings"]) == 2 for row in rows)
    with pytest.raises(NemoVfmError, match="Most often: raters disagree"):
        ran(tmp_path / "far", "ratings", *settings, "pipeline.max_spread=1", judge=in_turn())


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="raters 0"):
        Ratings(tasks=TopicTasks(), raters=0)
    assert Ratings(tasks=TopicTasks(), responder="other").roles() == ["judge", "other"]
