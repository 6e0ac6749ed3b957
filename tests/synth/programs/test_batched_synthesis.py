"""Tests that a synthesis goes on batch by batch, with files in the place of a connection."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.asking.batch_asker import BatchPending
from nemo_vfm.config import build, compose
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint
from nemo_vfm.core.types.job import Run
from nemo_vfm.synth.programs.synthesize import Synthesize
from tests.support.chat_server import allowed, answer
from tests.support.repository import ROOT
from tests.support.told_models import ToldModel

URL = "https://batch.test/v1"


def job(**changes: Any) -> Synthesize:
    made = build(compose(str(ROOT / "recipes/synthetic/two_turn.yaml"), ["rows=6"]))
    chat = Chat(endpoint=Endpoint(url=URL, permissions=allowed(URL)), model="tiny")
    given = {"pipeline": made.pipeline, "prompts": made.prompts, "generator": chat, "rows": 6, "batch": True}
    return Synthesize(**(given | changes))


def answered(folder: Path, model: ToldModel) -> int:
    lines = [json.loads(line) for file in folder.glob("requests-*.jsonl") for line in file.read_text().splitlines()]
    results = [
        {"custom_id": line["custom_id"], "error": None, "response": {
            "status_code": 200, "body": answer(model.say(line["body"]["messages"]).text)}} for line in lines
    ]  # fmt: skip
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results/all.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    return len(lines)


def test_each_run_takes_one_step_and_the_rows_are_those_of_asking_directly(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "direct").mkdir()
    rounds, asked = 0, [0]
    while rounds < 20:
        try:
            job().run(Run(tmp_path / "run", resume=True))
        except BatchPending as waits:
            assert "Submit the files as a batch" in str(waits)
            asked.append(answered(tmp_path / "run/batch", ToldModel()))
            rounds += 1
        else:
            break
    assert rounds == 6, "topics, subtopics, tasks, an answer, a second question, its answer"
    assert asked[1] == 1 and asked[-1] == asked[-2] + 6
    job(generator=ToldModel(), batch=False).run(Run(tmp_path / "direct"))
    one, other = (
        [json.loads(line)["messages"] for line in (tmp_path / name / "rows.jsonl").read_text().splitlines()]
        for name in ("run", "direct")
    )
    assert one == other and len(one) == 6


def test_batches_are_of_one_model_behind_an_endpoint() -> None:
    with pytest.raises(ValueError, match="one Chat, but got ToldModel"):
        job(generator=ToldModel())
    with pytest.raises(ValueError, match="and 1 models"):
        job(models={"judge": ToldModel()})
