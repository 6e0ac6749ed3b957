"""Tests that recipes about documents and given rows make fifty rows in any order of answers, by all their rules."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.embedded_responder import EmbeddedResponder
from tests.support.repository import ROOT
from tests.support.told_models import ledger_of

RULES = {
    "closed_qa": {"a quotation is not in the document", "the answer quotes too little"},
    "documents": {
        "no program that compiles", "no table of 4 to 40 rows with numbers", "the program does not read the table",
        "the program ended with error", "the program prints another answer", "the answer does not end with a value",
    },
    "filter_rows": {"exact copy", "near copy", "fewer than 4 words in a turn"},
    "real_prompts": {"prompt of the other half", "flagged in the data", "copy of an earlier prompt"},
    "upsampler": {
        "a caption of fewer than 20 words", "a prompt of fewer than 2 or more than 12 words",
        "a prompt that names something not in its caption",
    },
}  # fmt: skip


class AnswersLate(EmbeddedResponder):
    """Says the same, after a wait that is another each time."""

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        time.sleep(random.random() / 200)
        return super().say(messages)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RULES)
def test_a_recipe_makes_its_fifty_rows_twice_alike_and_breaks_each_rule(tmp_path: Path, recipe: str) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        job = build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["tries=1"]))
        if name == "other":
            job.generator = AnswersLate(error_rate=0.02)
        job.run(Run(tmp_path / name))
    one, other = ((tmp_path / name / "rows.jsonl").read_bytes() for name in ("one", "other"))
    told = ledger_of(tmp_path / "one")
    assert one == other and told["kept"] == 50 and told["dropped"].keys() >= RULES[recipe]
    for line in one.decode().splitlines():
        row = json.loads(line)
        assert row["messages"][-1]["role"] == "assistant" and all(one["content"] for one in row["messages"])
